"""A venv for every candidate under work/peers/venvs, made once."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.candidates import Candidate

INSTALL_SECONDS = 900


class NotInstallable(Exception):
    """The message is what the installer said last."""


@dataclass(frozen=True)
class Venv:
    """python: its interpreter. versions: package -> version, everything in it."""

    python: Path
    versions: dict[str, str]


def make(candidate: Candidate, root: Path) -> Venv:
    """Makes it, or finds it as made before with the same requirements. Raises NotInstallable."""
    folder = root / "venvs" / candidate.name.replace(" ", "-")
    python = folder / "bin" / "python"
    wanted = [*candidate.requirements, *candidate.overrides, f"jax=={version('jax')}", "flatbuffers", "numpy"]
    mark = folder / "installed.txt"
    recipe = "\n".join([*wanted, f"beside={candidate.beside}"])
    if not mark.exists() or mark.read_text() != recipe:
        _install(folder, wanted, candidate.overrides)
        if candidate.beside:
            _install(folder / "beside", candidate.requirements, ())
        mark.write_text(recipe)
    frozen = _run([sys.executable, "-m", "uv", "pip", "freeze", "--python", str(python)])
    pairs = (
        (line.partition("==")[0], line.partition("==")[2]) for line in frozen.splitlines() if "==" in line
    )
    return Venv(python, dict(pairs))


def _install(folder: Path, wanted: Sequence[str], overrides: Sequence[str]) -> None:
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    replaced = folder / "overrides.txt"
    replaced.write_text("\n".join(overrides))
    options = ["--quiet", "--python", str(folder / "bin" / "python"), "--override", str(replaced)]
    _run([sys.executable, "-m", "uv", "pip", "install", *options, *wanted])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotInstallable(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")
    return done.stdout
