"""A version appears whole or not at all, and two exporters never share one."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from converters.bundle import list_versions, open_bundle
from converters.errors import BadSpec, StorageError, VersionTaken
from converters.publish import claimed_version, find_or_publish
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


# Looks for a version of one checkpoint, or publishes it, in models m0, m1, ...: one for each line that it reads. What it
# publishes takes `seconds`.
ONCE = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from converters.bundle import list_versions
    from converters.publish import claimed_version, find_or_publish

    root, seconds = Path(sys.argv[1]), float(sys.argv[2])

    def find():
        numbers = list_versions(model)
        return next((model / str(n) for n in numbers if (model / str(n) / "manifest.json").read_text() == "it"), None)

    def publish():
        with claimed_version(model, None) as (number, folder):
            print("publishing", flush=True)
            time.sleep(seconds)
            (folder / "manifest.json").write_text("it")
        return model / str(number)

    print("there", flush=True)
    for model in map(root.joinpath, map(str.strip, sys.stdin)):
        path, written = find_or_publish(model, find, publish, lambda text: print(text, flush=True))
        print("wrote" if written else "kept", path.name, flush=True)
""")


class Once:
    """ONCE in a process of its own, ready."""

    def __init__(self, root: Path, seconds: float) -> None:
        command = [sys.executable, "-c", ONCE, str(root), str(seconds)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.line() == "there"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begin(self, model: str) -> None:
        assert self.process.stdin is not None
        print(model, file=self.process.stdin, flush=True)

    def end(self) -> str:
        """Whether it wrote, and the version."""
        while not (said := self.line()).startswith(("wrote ", "kept ")):
            assert said, "it died"
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def racers(models: Path) -> Iterator[list[Once]]:
    """Two, whose publications take a twentieth of a second."""
    both = [Once(models, 0.05) for _ in range(2)]
    yield both
    for each in both:
        each.kill()


def test_of_two_that_look_and_publish_at_once_one_publishes(racers: list[Once], models: Path) -> None:
    for each in range(12):
        for racer in racers:
            racer.begin(f"m{each}")
        assert sorted(racer.end() for racer in racers) == ["kept 1", "wrote 1"]
        assert list_versions(models / f"m{each}") == [1]


def test_one_that_is_killed_as_it_publishes_is_not_waited_for(racers: list[Once], models: Path) -> None:
    killed = Once(models, 60)
    killed.begin("m")
    assert killed.line() == "publishing"
    racers[0].begin("m")
    assert racers[0].line() == "another export of m is at work; waiting for it"
    assert list_versions(models / "m") == []
    killed.kill()
    assert racers[0].end() == "wrote 2", "the number that was claimed is passed"
    assert list_versions(models / "m") == [2]


def test_a_volume_without_locks_is_named_and_published_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    done = find_or_publish(tmp_path / "m", lambda: None, lambda: tmp_path / "m" / "1", said.append)
    assert done == (tmp_path / "m" / "1", True)
    assert said == [
        f"{tmp_path / 'm'}: this volume has no locks; an export beside this one may write the same"
    ]


def test_what_is_there_is_found_on_a_volume_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "in the way").touch()
    model = tmp_path / "in the way" / "m"
    assert find_or_publish(model, lambda: model / "1", lambda: model, print) == (model / "1", False)
    with pytest.raises(StorageError, match="in the way"):
        find_or_publish(model, lambda: None, lambda: model, print)


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
