"""Resolves locks/ from pyproject.toml: python scripts/lock.py

One lock for development, and one per image and accelerator. Universal (every platform), with hashes, without an index
address: whoever installs names their own index.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "dev": ("dev",),
    "train-cpu": ("train",),
    "train-cuda12": ("train", "cuda12"),
    "export-cpu": ("export",),
    "export-cuda12": ("export", "cuda12"),
    "serve-cpu": ("serve", "native"),
    "serve-cuda12": ("serve", "native", "cuda12"),
}
OPTIONS = (
    "--universal",
    "--python-version",
    "3.12",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-header",
)


def main() -> None:
    dev = ROOT / "locks" / "dev.txt"
    for name, extras in LOCKS.items():
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", *OPTIONS, "pyproject.toml"]
        for extra in extras:
            command += ["--extra", extra]
        if name != "dev":
            # An image has the versions that the tests ran with.
            command += ["--constraint", str(dev.relative_to(ROOT))]
        subprocess.run([*command, "--output-file", f"locks/{name}.txt"], cwd=ROOT, check=True)
        print(f"locks/{name}.txt")


if __name__ == "__main__":
    main()
