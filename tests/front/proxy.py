"""Envoy with the very configuration of deploy/, on ports and paths of a test."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path

import grpc
import yaml

from benchmarks.peers.servers.serve_envoy import configuration, replaced
from tests.server_process import ROOT, connect

ENVOY = Path(sys.executable).with_name("envoy")
DEPLOY = ROOT / "deploy"


def container_arguments() -> list[str]:
    """Those of the container in the manifest."""
    documents = yaml.safe_load_all((DEPLOY / "stage-4-serve.yaml").read_text())
    (pod,) = (each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment")
    (envoy,) = (each for each in pod["initContainers"] if each["name"] == "envoy")
    return envoy["args"]


def component_arguments(name: str) -> tuple[str, ...]:
    """Those that a component of deploy/ adds."""
    kustomization = yaml.safe_load((DEPLOY / "components" / name / "kustomization.yaml").read_text())
    patches = [yaml.safe_load(each["patch"]) for each in kustomization["patches"]]
    operations = [each for patch in patches if isinstance(patch, list) for each in patch]
    added = tuple(each["value"] for each in operations if each["path"].endswith("/initContainers/0/args/-"))
    assert len(added) == 2, added
    return added


TLS = component_arguments("tls")
MTLS = component_arguments("mtls")


class Proxy:
    """Envoy in front of `folder`/grpc.sock, certificates in `folder`/tls. Use as a context manager.

    changed: text of envoy.yaml -> what a test needs in its place; each is there exactly once.
    """

    def __init__(self, folder: Path, *flags: str, changed: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        (folder / "tls").mkdir(exist_ok=True)
        config = configuration(folder, grpc_port=0, front_port=0)
        for old, new in (changed or {}).items():
            replaced(config, old, new)
        arguments = container_arguments()
        assert arguments[:2] == ["--config-path", "/etc/envoy/envoy.yaml"]
        self._flags = ["--config-path", str(config), *arguments[2:], *flags]
        self._log = folder / "envoy.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.grpc = self.front = ""
        self._channels: list[grpc.Channel] = []

    def validated(self) -> str:
        """What Envoy says of the configuration; "" where it is right."""
        done = subprocess.run(
            [ENVOY, "--mode", "validate", *self._flags],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode == 0) == done.stdout.strip().endswith(" OK"), done
        return done.stderr if done.returncode else ""

    def __enter__(self) -> "Proxy":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([ENVOY, *self._flags], stdout=log, stderr=log)
        self._await_ports()
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()
        assert self._process is not None
        ended_before = self._process.poll()
        self._process.kill()
        self._process.wait()
        assert ended_before is None, self.log()

    @property
    def admin_socket(self) -> Path:
        return self.folder / "admin.sock"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def channel(self) -> grpc.Channel:
        """A connection of its own, in cleartext."""
        channel = connect(self.grpc)
        self._channels.append(channel)
        return channel

    def admin(self, method: str, path: str) -> str:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(10)
            connected.connect(str(self.admin_socket))
            connection = HTTPConnection("localhost")
            connection.sock = connected
            connection.request(method, path)
            return connection.getresponse().read().decode()

    def stat(self, name: str) -> int:
        match = re.search(rf"(?m)^{re.escape(name)}: (\d+)$", self.admin("GET", "/stats"))
        assert match, f"Envoy records no {name}"
        return int(match[1])

    def probe(self, path: str = "/ready") -> tuple[int, str]:
        """Status and body of a path on the port of probes."""
        host, _, port = self.front.rpartition(":")
        connection = HTTPConnection(host, int(port), timeout=10)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def _await_ports(self) -> None:
        end = time.monotonic() + 30
        while not self.front:
            assert self._process is not None and self._process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)
            try:
                if self.admin("GET", "/ready").strip() != "LIVE":
                    continue
                listeners = json.loads(self.admin("GET", "/listeners?format=json"))["listener_statuses"]
            except OSError:
                continue
            ports = {
                each["name"]: each["local_address"]["socket_address"]["port_value"] for each in listeners
            }
            self.grpc, self.front = f"127.0.0.1:{ports['grpc']}", f"127.0.0.1:{ports['front']}"
