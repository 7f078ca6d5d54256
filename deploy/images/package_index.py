"""The package index of this machine, for the time of a build: two secrets that leave nothing in an image.

A machine behind a proxy or a mirror says so to pip; pip inside the build hears the same.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# Where deploy/Dockerfile mounts ca.pem.
MOUNTED_CERTIFICATES = "/run/pip/ca.pem"
PASSED_ON = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")


def secrets(folder: Path) -> dict[str, Path]:
    """The files to mount, by the identifiers that deploy/Dockerfile knows; written to `folder`."""
    said = pip_settings()
    files: dict[str, Path] = {}
    certificates = said.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    if certificates and Path(certificates).is_file():
        files["ca.pem"] = Path(certificates).resolve()
    conf = folder / "pip.conf"
    conf.write_text(pip_conf(said, "ca.pem" in files))
    return {**files, "pip.conf": conf}


def pip_conf(said: Mapping[str, str], certificates: bool) -> str:
    """pip's settings as a file; what lies in folders of this machine is not there inside a build and left out."""
    lines = ["[global]"]
    for key in PASSED_ON:
        values = [value for value in said.get(key, "").split() if not value.startswith(("file:", "/"))]
        if values:
            lines.append(f"{key} = {' '.join(values)}")
    if certificates:
        lines.append(f"cert = {MOUNTED_CERTIFICATES}")
    return "\n".join(lines) + "\n"


def pip_settings() -> dict[str, str]:
    """What `pip config list` says, the environment's word last; empty where this Python has no pip."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    said: dict[str, str] = {}
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2].removeprefix("default-")
        said[name] = str(ast.literal_eval(value))
    return said
