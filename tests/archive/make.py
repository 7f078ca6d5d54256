"""Writes the archive: bundles by JAX versions that are past. python tests/archive/make.py [VERSION ...]

Each version gets a venv in a temporary folder, and the exporter of this checkout runs in it: 0.8.0 to 0.12 run it as it
is, though jaxport declares a newer one. One that no longer does is written with an older commit of jaxport; what is
committed stays as it is. With every minor release of JAX the one before joins VERSIONS, and nothing leaves it.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# The last of each minor release, and one that JAX 0.12 refuses.
VERSIONS = ("0.8.0", "0.9.2", "0.10.2", "0.11.2")
# What the exporter needs beside JAX; their versions are those of the day.
BESIDE = ("flatbuffers", "orbax-checkpoint", "ml_dtypes")


def make(version: str) -> Path:
    """tests/archive/jax-<version>.tar.gz, which holds mlp/1 and attention/1."""
    with tempfile.TemporaryDirectory() as folder:
        venv, models = Path(folder, "venv"), Path(folder, "models")
        python = venv / "bin" / "python"
        subprocess.run(["sh", ROOT / "scripts" / "make-venv", venv], check=True)
        wanted = (f"jax=={version}", f"jaxlib=={version}", *BESIDE)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        # Outside of a repository: a bundle says from which commit its working directory was.
        subprocess.run(
            [python, HERE / "models.py", models],
            check=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        )
        path = HERE / f"jax-{version}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(models, ".", filter=_of_nobody)
    return path


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    for version in sys.argv[1:] or VERSIONS:
        print(make(version).relative_to(ROOT))
