"""Resolves locks/ from pyproject.toml: python scripts/lock.py

One lock for development, one per image and accelerator, one for what builds our own wheel in the images, one for the
clients that the conformance tests run, one for the tests of further formats, one of the oldest versions allowed, and those of the checks of terraform/.
Universal (every platform), with hashes, without an index address: whoever installs names their own index.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "dev": ("dev",),
    "train-cpu": ("train", "tokenizers"),
    "train-cuda12": ("train", "tokenizers", "cuda12"),
    "export-cpu": ("export",),
    "export-cuda12": ("export", "cuda12"),
    "serve-cpu": ("serve", "native"),
    "serve-cuda12": ("serve", "native", "cuda12"),
}
# What `make test-versions` goes the whole way with: each package that pyproject.toml names, as old as it allows.
OLDEST = ("train", "export", "serve")
# tensorflow-serving-api asks for tensorflow where tensorflow-cpu is installed in its place.
ELSEWHERE = "python_version < '3.14' and (sys_platform != 'linux' or platform_machine != 'x86_64')"
# What TensorFlow asks for, and neither its messages nor make_tensor_proto ever import.
UNUSED = ("keras", "h5py", "libclang", "google-pasta", "setuptools", "wheel")
CLIENTS = (f"tensorflow ; {ELSEWHERE}", *(f"{name} ; python_version < '3'" for name in UNUSED))
# jax2onnx asks for an Orbax older than ours, which nothing that an export runs of it imports.
ORBAX = "orbax-checkpoint>=0.12.4"
OPTIONS = (
    "--universal",
    "--python-version",
    "3.12",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-header",
)


# An image has the versions that the tests ran with.
AS_TESTED = ("--constraint", "locks/dev.txt")


def main() -> None:
    for name, extras in LOCKS.items():
        sources = ["pyproject.toml"]
        for extra in extras:
            sources += ["--extra", extra]
        if name != "dev":
            sources += AS_TESTED
        resolve(name, sources)
    oldest = [flag for extra in OLDEST for flag in ("--extra", extra)]
    resolve("oldest", ["pyproject.toml", *oldest, "--resolution", "lowest-direct"])
    builder = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    resolve("build", ["-", *AS_TESTED], "\n".join(builder))
    resolve("conformance", ["--group", "conformance", "--override", "-"], "\n".join(CLIENTS))
    sources = ["pyproject.toml", "--extra", "train", "--extra", "export", "--group", "formats"]
    resolve("formats", [*sources, "--override", "-", *AS_TESTED], ORBAX)
    for name in ("terraform", "checkov"):
        resolve(name, ["--group", name])
    for name in ("google-7", "google-8"):  # read, not run: nothing that they ask for is needed
        resolve(name, ["--group", name, "--no-deps"])


def resolve(name: str, sources: list[str], stdin: str = "") -> None:
    """Writes locks/<name>.txt."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", *OPTIONS, *sources]
    command += ["--output-file", f"locks/{name}.txt"]
    subprocess.run(command, cwd=ROOT, check=True, input=stdin, text=True)
    print(f"locks/{name}.txt")


if __name__ == "__main__":
    main()
