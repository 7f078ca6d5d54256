"""The image that ours stand on: Debian's slim Python from its registry, or a stand-in made from Debian's packages."""

import hashlib
import platform as machine
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from deploy.images.build import PLATFORM
from deploy.images.engine import Engine, NotPossible, last_line

OFFICIAL = "docker.io/library/python:3.13-slim-trixie"
# Debian 13 with its Python 3.13: what the official image has, but for where Python lies.
RECIPE = (
    "mmdebstrap",
    "--quiet",
    "--variant=minbase",
    "--include=python3,python3-venv",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "trixie",
)
ARCHITECTURES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}
OWN = f"{machine.system().lower()}/{ARCHITECTURES.get(machine.machine(), machine.machine())}"
STAND_IN = (
    f"localhost/jaxport/stand-in-base:trixie-{hashlib.sha256(' '.join(RECIPE).encode()).hexdigest()[:8]}"
)


def base_image(
    engine: Engine, asked: str | None, say: Callable[[str], None], platform: str = PLATFORM
) -> str:
    """The base that was asked for, or the official one, or in its place the stand-in; for `platform`.

    Raises NotPossible where an image that was asked for by name is not to be had, or the stand-in would be one of another
    platform: it is made of this machine's packages.
    """
    wanted = asked or OFFICIAL
    if engine.has(wanted, platform):
        return wanted
    pulled = engine.run("pull", "--platform", platform, wanted, timeout=600)
    if pulled.returncode == 0:
        return wanted
    why = last_line(pulled.stderr)
    if asked:
        raise NotPossible(
            f"the base image {asked} is neither here nor to be pulled for {platform} ({why}); see --base"
        )
    if platform != OWN:
        raise NotPossible(
            f"{OFFICIAL} cannot be pulled for {platform} ({why}), and this machine, {OWN}, has no stand-in of that: "
            "name a base that it can pull by --base"
        )
    say(f"{OFFICIAL} cannot be pulled: {why}")
    say(f"STAND-IN BASE: {STAND_IN}, made from Debian's packages with mmdebstrap; not for publishing")
    if not engine.has(STAND_IN):
        make_stand_in(engine)
    return STAND_IN


def make_stand_in(engine: Engine) -> None:
    """Imports Debian's packages as one layer; 20 s."""
    if shutil.which("mmdebstrap") is None:
        raise NotPossible(
            "no base image and no mmdebstrap to make one; on Debian: apt-get install mmdebstrap"
        )
    with tempfile.TemporaryDirectory() as folder:
        tar = str(Path(folder) / "base.tar")
        made = subprocess.run([*RECIPE, tar], capture_output=True, text=True, check=False)
        if made.returncode:
            raise NotPossible(f"the stand-in base was not made: {last_line(made.stderr)}")
        engine.ask("import", tar, STAND_IN, timeout=600)
