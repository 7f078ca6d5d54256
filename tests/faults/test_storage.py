"""A volume that is full when a run begins; tests/faults/full has those that fill up or turn read-only under way."""

from pathlib import Path

from tests.faults.volumes import in_namespace, needs_mounts


@needs_mounts
def test_a_disk_that_is_full_from_the_start_is_named_in_one_line(tmp_path: Path) -> None:
    said = in_namespace(
        'dd if=/dev/zero of="$ROOT/fill" bs=64k 2>/dev/null; train; echo exit $?', tmp_path, SIZE="6m"
    )
    error, code = said.splitlines()
    assert code == "exit 4"
    assert error.startswith("error: cannot write ")
    assert "no space left on device" in error
