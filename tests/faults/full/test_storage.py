"""A full disk and a volume that turns read-only: exit 4, one line, the last checkpoint whole, and a way on."""

from pathlib import Path

from tests.faults.volumes import in_namespace, needs_mounts

pytestmark = needs_mounts


def test_a_disk_that_fills_up_ends_the_run_and_spares_the_last_checkpoint(tmp_path: Path) -> None:
    said = in_namespace(
        "train --steps 200 --set checkpoint_every=2 --set eval_every=100 --set keep_latest=100; echo exit $?\n"
        'last; mount -o remount,size=256m "$ROOT"\n'
        "train --steps 200 --set checkpoint_every=100; echo exit $?; last",
        tmp_path,
        SIZE="3m",
    )
    lines = said.splitlines()
    failed = lines.index("exit 4")
    assert "no space left on device" in lines[failed - 1]
    assert lines[failed - 1].startswith("error: cannot write ")
    assert lines[failed + 1].startswith("whole ")
    assert lines[-2:] == ["exit 0", "whole 200"]
    assert "Traceback" not in said


def test_a_volume_that_is_read_only_ends_the_run_and_spares_the_last_checkpoint(tmp_path: Path) -> None:
    said = in_namespace(
        "STOP_AT=6; export STOP_AT; train; echo exit $?; unset STOP_AT\n"
        'mount -o remount,ro "$ROOT"; train; echo exit $?; last\n'
        'mount -o remount,rw "$ROOT"; train; echo exit $?\n'
        'mount -o remount,ro "$ROOT"; train; echo exit $?',
        tmp_path,
    )
    lines = said.splitlines()
    failed = lines.index("exit 4")
    assert lines[failed - 1].startswith("error: cannot write ")
    assert "read-only file system" in lines[failed - 1]
    assert lines[failed + 1] == "whole 7"
    assert [line for line in lines if line.startswith("exit")] == ["exit 75", "exit 4", "exit 0", "exit 0"]
    assert "Traceback" not in said
