"""File systems that are real, mounted in a namespace of their own that vanishes with the test's processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOY = Path(__file__).parents[1] / "train_job"
_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        [*_UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    return tried.returncode == 0


needs_mounts = pytest.mark.skipif(
    not _can_mount(), reason="this kernel gives no mount namespaces to this user"
)

SCRIPT = """
cd "$TOY"; trap '' PIPE
mount -t tmpfs -o size=$SIZE none "$ROOT" || exit 99
train() { "$PYTHON" -m train_job --model toy_model:$MODEL --data "$TEXT" --root "$ROOT" --run r "$@"; }
last() { "$PYTHON" -c 'import sys, pathlib; from train_job.checkpoints import *
run = pathlib.Path(sys.argv[1]); step = choose_step(run, "latest").step; load_params(run, step); print("whole", step)' "$ROOT/runs/r"; }
"""


def in_namespace(script: str, tmp_path: Path, **variables: str) -> str:
    """Runs shell text after SCRIPT and returns everything it printed."""
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 100)
    root = tmp_path / "volume"
    root.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith("JAX_")},
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # the toy is to compile soon, not to run fast
        "TOY": str(TOY),
        "ROOT": str(root),
        "TEXT": str(text),
        "PYTHON": sys.executable,
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(tmp_path),
        "SIZE": "64m",
        "MODEL": "toy",
        **variables,
    }
    done = subprocess.run(
        [*_UNSHARE, "sh", "-c", SCRIPT + script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
