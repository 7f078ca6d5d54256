"""A version appears whole or not at all, and two exporters never share one."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from converters.bundle import list_versions, open_bundle
from converters.errors import BadSpec, StorageError, VersionTaken
from converters.publish import claimed_version
from tests.converters.conftest import export_iris

EXPORTER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from tests.converters.conftest import export_iris
    print(export_iris(Path(sys.argv[1])))
""")


def start_exporter(target: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", EXPORTER, str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_exporters_racing_for_next_publish_two_whole_versions(tmp_path: Path) -> None:
    racers = [start_exporter(tmp_path / "iris" / "next") for _ in range(2)]
    told = sorted(racer.communicate(timeout=120)[0].strip() for racer in racers)
    assert [racer.returncode for racer in racers] == [0, 0]
    assert told == [str(tmp_path / "iris" / name) for name in ("1", "2")]
    for version in list_versions(tmp_path / "iris"):
        open_bundle(tmp_path / "iris" / str(version)).load_weights()


def test_many_claims_at_once_are_all_different(tmp_path: Path) -> None:
    """The claim alone, without the seconds that an export takes: threads that meet in the middle of one."""
    import concurrent.futures

    def claim(_: int) -> int:
        with claimed_version(tmp_path / "m", None) as (number, folder):
            (folder / "manifest.json").write_text("{}")
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(claim, range(40)))
    assert sorted(numbers) == list(range(1, 41)) == list_versions(tmp_path / "m")


def test_an_existing_version_is_never_overwritten(iris_bundle: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in iris_bundle.rglob("*")}
    with pytest.raises(VersionTaken, match="exists and is never overwritten; take --version next"):
        export_iris(iris_bundle)
    assert {path: path.stat().st_mtime_ns for path in iris_bundle.rglob("*")} == before


def test_an_empty_folder_of_that_number_is_not_replaced(tmp_path: Path) -> None:
    """rename(2) alone would replace it."""
    (tmp_path / "iris" / "4").mkdir(parents=True)
    with pytest.raises(VersionTaken), claimed_version(tmp_path / "iris", 4):
        pass
    with claimed_version(tmp_path / "iris", None) as (number, _):
        assert number == 5


def test_a_number_that_is_being_written_is_refused_by_name_and_passed_by_next(tmp_path: Path) -> None:
    with claimed_version(tmp_path / "iris", 1):
        with (
            pytest.raises(
                VersionTaken, match=r"another export is writing it.*\.claim-1 if no export is running"
            ),
            claimed_version(tmp_path / "iris", 1),
        ):
            pass
        with claimed_version(tmp_path / "iris", None) as (number, _):
            assert number == 2


def test_a_failure_inside_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyError), claimed_version(tmp_path / "iris", None) as (_, folder):
        (folder / "half").write_text("written")
        raise KeyError
    assert list((tmp_path / "iris").iterdir()) == []


def test_a_killed_exporter_leaves_no_version_and_the_next_one_succeeds(tmp_path: Path) -> None:
    exporter = start_exporter(tmp_path / "iris" / "next")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("iris/.claim-1/*")) and exporter.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(exporter.pid, signal.SIGKILL)
    exporter.communicate()
    whole = list_versions(tmp_path / "iris")
    for version in whole:  # it may have been quicker than the signal
        open_bundle(tmp_path / "iris" / str(version))
    following = export_iris(tmp_path / "iris" / "next")
    assert int(following.name) == 2
    open_bundle(following)


def test_a_volume_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where a folder is needed")
    with pytest.raises(StorageError, match=r"models.*; free or mount the volume") as refusal:
        export_iris(tmp_path / "models" / "iris" / "1")
    assert refusal.value.exit_code == 4


def test_a_full_disk_leaves_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device"):
        export_iris(tmp_path / "iris" / "1")
    assert list((tmp_path / "iris").iterdir()) == []


@pytest.mark.parametrize("version", [0, -3])
def test_numbers_begin_at_one(version: int, tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="a positive integer"), claimed_version(tmp_path / "iris", version):
        pass
