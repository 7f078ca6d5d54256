"""The program that builds and runs containers: podman, or docker where its daemon answers."""

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Where podman's settings of a machine or a person are.
OWN_SETTINGS = (Path("/etc/containers/containers.conf"), Path("~/.config/containers/containers.conf"))
HIGHEST_PROCESS = Path("/proc/sys/kernel/pid_max")


class NotPossible(Exception):
    """This machine cannot build or run images: one line, with the cure. Exit code 4."""


@dataclass(frozen=True)
class Engine:
    name: str  # podman | docker
    environment: Mapping[str, str]

    def run(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs one command to its end, whatever it ends with; `timeout` in seconds."""
        return subprocess.run(
            [self.name, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def ask(self, *arguments: str, timeout: float = 60) -> str:
        """What one command prints. Raises NotPossible, with the last line of its complaint, where it fails."""
        ended = self.run(*arguments, timeout=timeout)
        if ended.returncode:
            raise NotPossible(f"{self.name} {arguments[0]} failed: {last_line(ended.stderr)}")
        return ended.stdout.strip()

    def has(self, image: str, platform: str | None = None) -> bool:
        """Whether the image is here; with a platform (linux/amd64), whether it is one of that."""
        found = self.run("image", "inspect", "--format", "{{.Os}}/{{.Architecture}}", image)
        return found.returncode == 0 and platform in (None, found.stdout.strip())

    def size(self, image: str) -> int:
        """Bytes of an image's layers, not compressed."""
        return int(self.ask("image", "inspect", "--format", "{{.Size}}", image))


def find_engine(folder: Path) -> Engine:
    """The first of podman and docker that answers; podman's generated settings go to `folder`, on Linux.

    Elsewhere podman runs in a machine of its own, which has its own limits.
    """
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    has_own = "CONTAINERS_CONF" in environment or any(path.expanduser().exists() for path in OWN_SETTINGS)
    if not has_own and HIGHEST_PROCESS.exists():
        environment["CONTAINERS_CONF"] = str(write_settings(folder))
    said = []
    for name in ("podman", "docker"):
        if shutil.which(name) is None:
            said.append(f"{name} is not installed")
            continue
        engine = Engine(name, environment)
        answer = engine.run("info", timeout=60)
        if answer.returncode == 0:
            return engine
        said.append(f"{name} does not answer ({last_line(answer.stderr)})")
    raise NotPossible(
        f"{', '.join(said)}; on Debian: apt-get install podman runc mmdebstrap; on a Mac: install podman or Docker "
        "Desktop and start its machine"
    )


def write_settings(folder: Path) -> Path:
    """Settings for this run alone: podman asks for more open files and processes than some machines allow anyone."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # podman lowers its own to the highest process number, and may not give more than it has.
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], int(HIGHEST_PROCESS.read_text()))
    allowed = [f'"{name}={n}:{n}"' for name, n in (("nofile", files), ("nproc", processes)) if n > 0]
    lines = ["[containers]", f"default_ulimits = [{', '.join(allowed)}]"]
    if shutil.which("crun") is None and shutil.which("runc"):
        lines += ["[engine]", 'runtime = "runc"']
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "containers.conf"
    path.write_text("\n".join(lines) + "\n")
    return path


def last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no word why"])[-1]
