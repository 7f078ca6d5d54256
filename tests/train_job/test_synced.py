"""A machine that is taken away between a checkpoint's number and its last byte on the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train_job.test_checkpoints import save_all, steps_of
from train_job.errors import CheckFailed
from train_job.job import train
from train_job.rows import read_metrics
from train_job.settings import TrainSettings
from train_job.synced import SYNCED, discard_unsynced, mark_synced


def emptied(run_dir: Path, step: int, name: str) -> None:
    """As a file is whose data were never written: its folder has it, without bytes."""
    os.truncate(run_dir / "checkpoints" / str(step) / name, 0)


@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "w/_METADATA", "w/manifest.ocdbt"])
def test_a_step_that_was_not_all_on_the_disk_loses_its_number(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_all(tmp_path, {1: 1.0, 2: 2.0})
    assert (tmp_path / SYNCED).read_text() == "2\n"
    item = next(path.name for path in (tmp_path / "checkpoints" / "2").iterdir() if path.is_dir())
    emptied(tmp_path, 2, name.replace("w/", f"{item}/"))
    discard_unsynced(tmp_path)
    assert steps_of(tmp_path) == [1, 2], "it was on the disk: what is wrong with it came later"
    mark_synced(tmp_path, 1)
    discard_unsynced(tmp_path)
    assert steps_of(tmp_path) == [1]
    said = "step 2 was not all on the disk when its machine stopped; going on from step 1"
    assert said in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1"]


def test_a_whole_step_is_believed_whether_or_not_it_was_written_down(tmp_path: Path) -> None:
    save_all(tmp_path, {1: 1.0, 2: 2.0})
    mark_synced(tmp_path, 1)
    discard_unsynced(tmp_path)
    assert steps_of(tmp_path) == [1, 2]


def test_of_a_run_from_before_nothing_is_discarded(tmp_path: Path) -> None:
    save_all(tmp_path, {1: 1.0})
    (tmp_path / SYNCED).unlink()
    emptied(tmp_path, 1, "_CHECKPOINT_METADATA")
    discard_unsynced(tmp_path)
    assert steps_of(tmp_path) == [1]


def test_the_first_step_of_a_run_may_be_lost_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    discard_unsynced(tmp_path)
    save_all(tmp_path, {1: 1.0})
    mark_synced(tmp_path, 0)
    emptied(tmp_path, 1, "_CHECKPOINT_METADATA")
    discard_unsynced(tmp_path)
    assert steps_of(tmp_path) == [] and "step 1 was not all on the disk" in capsys.readouterr().out


def test_a_run_goes_on_from_the_step_before(
    finished: Path, tmp_path: Path, toy_settings: Callable[..., TrainSettings]
) -> None:
    """And ends as the one that was left alone; damage to a step that was on the disk is still an error."""
    root = tmp_path / "root"
    run_dir = shutil.copytree(finished, root / "runs" / "toy")
    record = run_dir / "run.json"
    record.write_text(record.read_text().replace('"finished": true', '"finished": false'))
    emptied(run_dir, 12, "params/_METADATA")
    with pytest.raises(CheckFailed, match="12: the checkpoint is damaged"):
        train(toy_settings(root))
    mark_synced(run_dir, 8)
    assert train(toy_settings(root)) == 0
    found, left_alone = ([row["val_loss"] for row in read_metrics(each)] for each in (run_dir, finished))
    assert found == left_alone
    assert steps_of(run_dir)[-1] == 12
