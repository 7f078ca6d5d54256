"""An export that waits for its run, on a volume that does not always answer."""

from pathlib import Path

import pytest

from converters import from_run
from converters.errors import BadSpec, StorageError
from converters.formats import Formats, all_written
from converters.from_run import RunExport, export_run
from converters.options import ExportOptions
from tests.converters.conftest import export_iris
from train_job.errors import UnknownStep
from train_job.runs import RunRecord, write_run

FINISHED = RunRecord("r", "nano", {}, {}, {}, {}, {}, "2026-01-01T00:00:00+00:00", finished=True)
TOO_LONG = "n" * 300  # a link to it can be read by nobody, not even by root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the folder of a run, whose record cannot be read."""
    monkeypatch.setattr(from_run, "WAIT_SECONDS", 0.001)
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "run.json").symlink_to(TOO_LONG)
    return tmp_path


@pytest.mark.parametrize("name", ["../r", "a/b", "/r", ".r", ""])
def test_a_name_that_leaves_the_folder_is_refused(root: Path, name: str) -> None:
    for settings in (RunExport(root, name), RunExport(root, "r", name=name)):
        with pytest.raises(BadSpec, match=r"letters, digits, '\.', '_' and '-' are allowed"):
            export_run(settings, print)


def test_a_record_that_cannot_be_read_once_is_read_again(root: Path) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            write_run(root / "runs" / "r", FINISHED)

    with pytest.raises(UnknownStep, match="none yet"):  # it is finished, and then has no checkpoint
        export_run(RunExport(root, "r", wait=True), say)
    assert "File name too long" in said[0] and said[0].endswith("; trying again")
    assert said[1].startswith("waiting for ")


def test_a_record_that_stays_unreadable_ends_the_wait_as_a_fault_of_the_volume(root: Path) -> None:
    said: list[str] = []
    with pytest.raises(StorageError, match=r"run.json: File name too long; free or mount") as refused:
        export_run(RunExport(root, "r", wait=True), said.append)
    assert refused.value.exit_code == 4
    assert sum("trying again" in line for line in said) == from_run.MOST_UNREADABLE - 1


def test_a_version_with_less_of_a_format_than_is_asked_for_is_none_alike(tmp_path: Path) -> None:
    path = export_iris(
        tmp_path / "m" / "1", platforms=("cpu", "cuda"), formats={"stablehlo": {"batches": (1, 2)}}
    )

    def alike(formats: Formats) -> Path | None:
        return from_run._alike(
            RunExport(tmp_path, "r", options=ExportOptions(formats=formats)), path.parent, {}, None
        )

    assert alike({}) == alike({"stablehlo": {"batches": (2,)}}) == path
    assert alike({"stablehlo": {"batches": (2, 4)}}) is None
    assert alike({"stablehlo": {}}) is None, "powers of two up to 32"
    assert alike({"stablehlo": {"batches": (2,)}, "onnx": {}}) is None


def test_a_savedmodel_for_fewer_platforms_is_not_what_is_asked_for() -> None:
    facts = {"savedmodel": {"platforms": ["cpu"]}, "onnx": {"signatures": {"predict": {}}}}
    assert all_written(facts, {"savedmodel": {}, "onnx": {}})
    assert not all_written(facts, {"savedmodel": {"platforms": ("cpu", "cuda")}})


def test_a_record_that_is_damaged_is_not_waited_for(root: Path) -> None:
    (root / "runs" / "r" / "run.json").unlink()
    (root / "runs" / "r" / "run.json").write_text("{")
    with pytest.raises(Exception, match="no run record") as refused:
        export_run(RunExport(root, "r", wait=True), print)
    assert getattr(refused.value, "exit_code", None) == 2
