"""Bundles that older JAX versions wrote, and where to find them. make.py writes them, models.py is what they hold."""

import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# JAX 0.12 and whatever comes after it refuses the first; to the second it has promised nothing.
REFUSED, OUTSIDE = "0.8.0", "0.9.2"


def versions() -> list[str]:
    """The JAX versions of the archive, by name."""
    return sorted(
        path.name.removeprefix("jax-").removesuffix(".tar.gz") for path in HERE.glob("jax-*.tar.gz")
    )


def unpacked(version: str, folder: Path) -> Path:
    """`folder`, with mlp/1 and attention/1 below it, as JAX `version` wrote them."""
    with tarfile.open(HERE / f"jax-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder
