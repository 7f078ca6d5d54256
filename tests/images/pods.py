"""A pod of the manifests, started, probed and ended in the order that kubelet keeps.

Its containers share a network that is reached from this machine alone, at a loopback address, and their emptyDirs.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.images.engine import Engine
from tests.images.containers import Container, arguments
from tests.images.probes import Probe, until
from tests.images.volumes import Volumes

KNOWN = {
    "activeDeadlineSeconds",  # of hours: no rehearsal gets there
    *("restartPolicy", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"),
    *("terminationGracePeriodSeconds", "securityContext", "tolerations", "topologySpreadConstraints"),
    *("initContainers", "containers", "volumes"),
}


@dataclass
class Pod:
    """Made by `Cluster.start`. `begun`: when each container was started, by its name, of time.monotonic()."""

    engine: Engine
    name: str
    spec: Mapping[str, Any]
    volumes: Volumes
    images: Mapping[str, str]  # that stand in for others
    index: int = 0
    host: str = "127.0.0.1"
    fixed: Mapping[int, int] = field(default_factory=dict)  # a container's port -> the port of `host`
    begun: dict[str, float] = field(default_factory=dict)
    ports: dict[int | str, int] = field(default_factory=dict)  # by number and name -> the port of `host`

    def start(self) -> "Pod":
        assert set(self.spec) <= KNOWN, f"{sorted(set(self.spec) - KNOWN)} cannot be rehearsed"
        self._network()
        for declared in self.spec.get("initContainers", []):
            assert declared["restartPolicy"] == "Always", "only sidecars are rehearsed before the containers"
            self._run(declared)
            self.until_started(declared)
        for declared in self.spec["containers"]:
            self._run(declared)
        for declared in self.spec["containers"]:
            self.until_started(declared)
        return self

    def container(self, name: str) -> Container:
        return Container(self.engine, f"{self.name}-{name}")

    def until_started(self, declared: Mapping[str, Any]) -> None:
        if "startupProbe" in declared:
            probe, container = self._probe(declared, "startupProbe"), self.container(declared["name"])
            until(probe, probe.seconds, f"{container.name} is not started", container.alive)

    def lives(self) -> None:
        """Fails unless every container runs and passes its liveness probe."""
        for declared in self._declared():
            self.container(declared["name"]).alive()
            if "livenessProbe" in declared:
                until(self._probe(declared, "livenessProbe"), 5, f"{self.name} is not alive", lambda: None)

    def not_ready(self) -> str:
        """Why a Service would not name this pod; nothing where it would."""
        probes = [
            self._probe(each, "readinessProbe") for each in self._declared() if "readinessProbe" in each
        ]
        return "; ".join(filter(None, (probe() for probe in probes)))

    def until_ready(self, seconds: float) -> float:
        """When it was Ready, in seconds since its server's start."""
        until(self.not_ready, seconds, f"{self.name} is not ready", self.lives)
        return time.monotonic() - self.begun[self.spec["containers"][0]["name"]]

    def address(self, port: str) -> str:
        """host:port of a port by its name."""
        return f"{self.host}:{self.ports[port]}"

    def wait(self, seconds: float) -> int:
        """The exit code of a Job's container."""
        (declared,) = self.spec["containers"]
        return self.container(declared["name"]).wait(seconds)

    def log(self) -> str:
        return self.container(self.spec["containers"][0]["name"]).log()

    def stop(self) -> dict[str, int]:
        """preStop, SIGTERM to the containers, and once they are gone to the sidecars; the exit codes by name.

        Fails where it takes longer than terminationGracePeriodSeconds: that is when kubelet kills.
        """
        end = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        for declared in self.spec["containers"]:
            if command := declared.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command"):
                code, said = self.container(declared["name"]).execute(command, end - time.monotonic())
                print(f"{self.name} preStop: {said.strip()}")
                assert code == 0, f"preStop ended with {code}: {said}"
        codes = {}
        for declared in [*self.spec["containers"], *reversed(self.spec.get("initContainers", []))]:
            container = self.container(declared["name"])
            container.signal("TERM")
            codes[declared["name"]] = container.wait(end - time.monotonic())
        return codes

    def remove(self) -> None:
        for name in (*(each["name"] for each in self._declared()), "network"):
            self.container(name).remove()
        self.volumes.remove()

    def _declared(self) -> list[Mapping[str, Any]]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def _probe(self, declared: Mapping[str, Any], kind: str) -> Probe:
        return Probe(declared[kind], self.host, self.ports)

    def _run(self, declared: Mapping[str, Any]) -> None:
        image = self.images.get(declared["image"], declared["image"])
        found = arguments(self.engine, self.spec, declared, self.index)
        found += self.volumes.arguments(declared)
        self.begun[declared["name"]] = time.monotonic()
        network = ["--network", f"container:{self.name}-network"]
        words = declared.get("args", [])
        if "command" in declared:
            entrypoint, *first = declared["command"]
            found += ["--entrypoint", entrypoint]
            words = [*first, *words]
        self.container(declared["name"]).run([*found, *network, image, *words])

    def _network(self) -> None:
        """A container that holds the pod's network; every declared port is published on `host`."""
        ports = [port for each in self._declared() for port in each.get("ports", [])]
        published = []
        for port in ports:
            number = port["containerPort"]
            published += ["--publish", f"{self.host}:{self.fixed.get(number, '')}:{number}"]
        image = self.spec["containers"][0]["image"]
        holder = self.container("network")
        holder.run([*published, "--pull", "never", "--read-only", "--entrypoint", "sleep", image, "infinity"])
        for port in ports:
            address = self.engine.ask("port", holder.name, f"{port['containerPort']}/tcp").splitlines()[0]
            self.ports[port["containerPort"]] = self.ports[port["name"]] = int(address.rpartition(":")[2])
