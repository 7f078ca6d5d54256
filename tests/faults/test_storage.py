"""A full disk and a volume that turns read-only: exit 4, one line, the last checkpoint whole, and a way on.

The file systems are real, mounted in a namespace of their own that vanishes with the test's processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOY = Path(__file__).parents[1] / "train_job"
_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        [*_UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    return tried.returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="this kernel gives no mount namespaces to this user")

SCRIPT = """
cd "$TOY"; trap '' PIPE
mount -t tmpfs -o size=$SIZE none "$ROOT" || exit 99
train() { "$PYTHON" -m train_job --model toy_model:$MODEL --data "$TEXT" --root "$ROOT" --run r "$@"; }
last() { "$PYTHON" -c 'import sys, pathlib; from train_job.checkpoints import *
run = pathlib.Path(sys.argv[1]); step = choose_step(run, "latest").step; load_params(run, step); print("whole", step)' "$ROOT/runs/r"; }
"""


def in_namespace(script: str, tmp_path: Path, text: Path, **variables: str) -> str:
    """Runs shell text after SCRIPT and returns everything it printed."""
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


def test_a_disk_that_fills_up_ends_the_run_and_spares_the_last_checkpoint(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 100)
    said = in_namespace(
        "train --steps 200 --set checkpoint_every=2 --set eval_every=100 --set keep_latest=100; echo exit $?\n"
        'last; mount -o remount,size=256m "$ROOT"\n'
        "train --steps 200 --set checkpoint_every=100; echo exit $?; last",
        tmp_path,
        text,
        SIZE="3m",
    )
    lines = said.splitlines()
    failed = lines.index("exit 4")
    assert "no space left on device" in lines[failed - 1]
    assert lines[failed - 1].startswith("error: cannot write ")
    assert lines[failed + 1].startswith("whole ")
    assert lines[-2:] == ["exit 0", "whole 200"]
    assert "Traceback" not in said


def test_a_disk_that_is_full_from_the_start_is_named_in_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 100)
    said = in_namespace(
        'dd if=/dev/zero of="$ROOT/fill" bs=64k 2>/dev/null; train; echo exit $?', tmp_path, text, SIZE="6m"
    )
    error, code = said.splitlines()
    assert code == "exit 4"
    assert error.startswith("error: cannot write ")
    assert "no space left on device" in error


def test_a_volume_that_is_read_only_ends_the_run_and_spares_the_last_checkpoint(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 100)
    said = in_namespace(
        "STOP_AT=6; export STOP_AT; train; echo exit $?; unset STOP_AT\n"
        'mount -o remount,ro "$ROOT"; train; echo exit $?; last\n'
        'mount -o remount,rw "$ROOT"; train; echo exit $?\n'
        'mount -o remount,ro "$ROOT"; train; echo exit $?',
        tmp_path,
        text,
    )
    lines = said.splitlines()
    failed = lines.index("exit 4")
    assert lines[failed - 1].startswith("error: cannot write ")
    assert "read-only file system" in lines[failed - 1]
    assert lines[failed + 1] == "whole 7"
    assert [line for line in lines if line.startswith("exit")] == ["exit 75", "exit 4", "exit 0", "exit 0"]
    assert "Traceback" not in said
