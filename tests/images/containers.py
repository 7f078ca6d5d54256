"""One container of a manifest: its spec as arguments for podman or docker, and what can be done with it then."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy.images.engine import Engine

# What a container's spec may have; another field is one that the rehearsal would pass over in silence.
KNOWN = {
    *(
        "name",
        "image",
        "command",
        "args",
        "env",
        "ports",
        "resources",
        "securityContext",
        "volumeMounts",
        "restartPolicy",
    ),
    *("startupProbe", "livenessProbe", "readinessProbe", "lifecycle"),
}
KNOWN_SECURITY = {
    *("runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy", "seccompProfile"),
    *("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"),
}
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@dataclass(frozen=True)
class Container:
    engine: Engine
    name: str

    def run(self, arguments: list[str]) -> None:
        ended = self.engine.run("run", "--detach", "--name", self.name, *arguments)
        assert ended.returncode == 0, f"{self.name} did not start: {ended.stderr.strip()[-2000:]}"

    def execute(self, command: list[str], seconds: float) -> tuple[int, str]:
        ended = self.engine.run("exec", self.name, *command, timeout=seconds)
        return ended.returncode, ended.stdout + ended.stderr

    def signal(self, name: str = "TERM") -> None:
        self.engine.run("kill", "--signal", name, self.name)

    def wait(self, seconds: float) -> int:
        """Its exit code; fails with the log where it still runs after `seconds`."""
        try:
            return int(self.engine.ask("wait", self.name, timeout=seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} still runs after {seconds:g} s:\n{self.log()[-2000:]}"
            ) from None

    @property
    def running(self) -> bool:
        return self.inspect("{{.State.Running}}") == "true"

    def alive(self) -> None:
        assert self.running, (
            f"{self.name} ended with {self.inspect('{{.State.ExitCode}}')}:\n{self.log()[-2000:]}"
        )

    def inspect(self, what: str) -> str:
        return self.engine.ask("inspect", "--format", what, self.name)

    def log(self) -> str:
        said = self.engine.run("logs", self.name)
        return said.stdout + said.stderr

    def remove(self) -> None:
        self.signal("KILL")  # else the one that holds a pod's network is waited for
        self.engine.run("rm", "--force", "--volumes", self.name)


def arguments(engine: Engine, pod: Mapping[str, Any], container: Mapping[str, Any], index: int) -> list[str]:
    """Everything of a container but its network, volumes and place in a pod; the image and its arguments not yet."""
    assert set(container) <= KNOWN, f"{sorted(set(container) - KNOWN)} cannot be rehearsed"
    found = ["--pull", "never", *security(engine, {**pod["securityContext"], **container["securityContext"]})]
    found += limits(container["resources"]["limits"])
    for each in container.get("env", []):
        found += ["--env", f"{each['name']}={variable(each, index)}"]
    return found


def security(engine: Engine, context: Mapping[str, Any]) -> list[str]:
    """The pod's context with the container's over it."""
    assert set(context) <= KNOWN_SECURITY, f"{sorted(set(context) - KNOWN_SECURITY)} cannot be rehearsed"
    assert context["runAsNonRoot"] and context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}  # what both engines do unasked
    found = ["--user", f"{context['runAsUser']}:{context['runAsGroup']}"]
    found += ["--group-add", str(context["fsGroup"])]
    found += [flag for capability in context["capabilities"]["drop"] for flag in ("--cap-drop", capability)]
    if not context["allowPrivilegeEscalation"]:
        found += ["--security-opt", "no-new-privileges"]
    if context["readOnlyRootFilesystem"]:
        # podman would lay writable folders over /tmp and /run.
        found += ["--read-only", *(["--read-only-tmpfs=false"] if engine.name == "podman" else [])]
    return found


def limits(declared: Mapping[str, str]) -> list[str]:
    """No more processors than there are: docker refuses it."""
    assert set(declared) <= {"cpu", "memory", "ephemeral-storage"}, f"{sorted(declared)} cannot be rehearsed"
    processors = min(quantity(declared["cpu"]), os.cpu_count() or 1) if "cpu" in declared else None
    return [
        *("--memory", str(int(quantity(declared["memory"])))),
        *(["--cpus", f"{processors:g}"] if processors else []),
    ]


def variable(declared: Mapping[str, Any], index: int) -> str:
    if "value" in declared:
        return declared["value"]
    assert declared["valueFrom"] == {"fieldRef": {"fieldPath": INDEX}}, f"{declared} cannot be rehearsed"
    return str(index)


def quantity(text: str) -> float:
    """500m, 2, 8Gi: processors or bytes."""
    if text.endswith("m"):
        return int(text[:-1]) / 1000
    return int(text[:-2]) * UNITS[text[-2:]] if text[-2:] in UNITS else int(text)
