"""What an image says of itself: the Dockerfile's build arguments behind the OCI labels."""

import os
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path


def version(root: Path) -> str:
    """The version of pyproject.toml: the tag of every image."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def labels(root: Path, source: str) -> dict[str, str]:
    """Created is the commit's time, so that an image built twice is the same one."""
    revision = git(root, "rev-parse", "HEAD") or "unknown"
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        revision += "-changed"
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or git(root, "log", "-1", "--format=%ct")
    created = datetime.fromtimestamp(int(seconds), UTC) if seconds else datetime.now(UTC)
    return {
        "VERSION": version(root),
        "REVISION": revision,
        "SOURCE": source,
        "CREATED": created.isoformat(timespec="seconds"),
    }


def git(root: Path, *arguments: str) -> str:
    """What git says; nothing where this is no checkout, or git is not there."""
    try:
        said = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""
