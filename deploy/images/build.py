"""One image of deploy/Dockerfile."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.images.engine import Engine, NotPossible
from deploy.images.package_index import secrets

TARGETS = ("train", "export", "serve")
ACCELERATORS = ("cpu", "cuda12")
# Of the nodes that the overlays and terraform/ name, whatever the machine is that builds: an image of another one starts
# nowhere there ("exec format error").
PLATFORM = "linux/amd64"


@dataclass(frozen=True)
class Build:
    target: str
    accelerator: str
    base: str
    word: str  # the project's version, or one of the builder's own
    platform: str = PLATFORM

    @property
    def tag(self) -> str:
        return f"localhost/jaxport/{self.target}:{self.word}-{self.accelerator}"


def build(engine: Engine, root: Path, wanted: Build, labels: Mapping[str, str]) -> int:
    """Builds and tags one image, and gives its size in bytes; labels go in as build arguments of their names.

    Raises NotPossible with the tail of the build's output where it fails.
    """
    command = ["build", "--file", "deploy/Dockerfile", "--target", wanted.target, "--network", "host"]
    command += ["--platform", wanted.platform]
    settings = {"BASE_IMAGE": wanted.base, "ACCELERATOR": wanted.accelerator, **labels}
    for name, value in settings.items():
        command += ["--build-arg", f"{name}={value}"]
    before = engine.run("image", "inspect", "--format", "{{.Id}}", wanted.tag).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        for name, path in secrets(Path(folder)).items():
            command += ["--secret", f"id={name},src={path}"]
        built = engine.run(*command, "--tag", wanted.tag, str(root), timeout=3600)
    if built.returncode:
        tail = "\n".join((built.stdout + built.stderr).strip().splitlines()[-12:])
        raise NotPossible(f"{wanted.tag} was not built:\n{tail}")
    forget(engine, before, wanted.tag)
    return engine.size(wanted.tag)


def forget(engine: Engine, before: str, tag: str) -> None:
    """Removes the image that had this tag, unless it still has it or a container runs from it."""
    now = engine.ask("image", "inspect", "--format", "{{.Id}}", tag)
    if before and before != now:
        engine.run("image", "rm", before)
