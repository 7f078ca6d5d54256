"""A disk that is full when a row or the record is written: exit 4, named, and what was there stays."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_job import checkpoints, plot
from train_job.checkpoints import list_steps, read_run
from train_job.errors import StorageFailed
from train_job.job import train
from train_job.loop import Loop
from train_job.rows import read_metrics
from train_job.runs import write_run
from train_job.settings import TrainSettings

FULL = "/dev/full"  # every write to it finds no space

type Settings = Callable[..., TrainSettings]


def test_a_row_that_cannot_be_written_ends_the_run_and_spares_what_was_saved(
    tmp_path: Path, toy_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Loop._look

    def looking(self: Loop, state: Any, done: int, *rest: Any) -> Any:
        if done == 8:
            assert self.log is not None
            self.log._lines.close()
            self.log._lines = Path(FULL).open("a")  # noqa: SIM115 (the log closes it)
        return look(self, state, done, *rest)

    settings = toy_settings(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_look", looking)
        with pytest.raises(StorageFailed, match=r"cannot write .*metrics\.jsonl: no space left") as caught:
            train(settings)
    assert caught.value.exit_code == 4
    assert [info.step for info in list_steps(settings.run_dir)] == [4]
    assert [row["step"] for row in read_metrics(settings.run_dir)] == [4]


@pytest.fixture
def trained(finished: Path, tmp_path: Path) -> Path:
    """All steps done and saved, but not marked finished."""
    run_dir = shutil.copytree(finished, tmp_path / "runs" / "toy")
    write_run(run_dir, dataclasses.replace(read_run(run_dir), finished=False))
    return run_dir


def test_a_mark_that_cannot_be_written_leaves_the_record_as_it_was(
    trained: Path, tmp_path: Path, toy_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything left of it; a start with space again has nothing to train, and marks it."""
    draw = plot.draw_plot

    def drawing(*arguments: Any) -> Path:
        drawn = draw(*arguments)
        (trained / ".run.json.partial").symlink_to(FULL)
        return drawn

    with monkeypatch.context() as patch:
        patch.setattr(plot, "draw_plot", drawing)
        with pytest.raises(StorageFailed, match=r"cannot write .*run\.json: no space left") as caught:
            train(toy_settings(tmp_path))
    assert caught.value.exit_code == 4
    assert not read_run(trained).finished
    assert not (trained / ".run.json.partial").is_symlink()
    assert train(toy_settings(tmp_path)) == 0
    assert read_run(trained).finished


def test_a_checkpoint_that_cannot_be_taken_away_ends_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(self: object, steps: list[int]) -> None:
        raise OSError(30, "Read-only file system")

    from tests.train_job.test_checkpoints import save_all

    monkeypatch.setattr(checkpoints.Remover, "remove", remove)
    with pytest.raises(StorageFailed, match=r"checkpoints/1: read-only .*last good: checkpoint of step 2"):
        save_all(tmp_path, {1: 1.0, 2: 2.0}, keep_latest=1, keep_best=0)


def test_what_a_kill_left_of_a_write_is_written_over(trained: Path) -> None:
    (trained / ".run.json.partial").write_text("{")
    write_run(trained, read_run(trained))
    assert not [path for path in trained.iterdir() if path.suffix == ".partial"]
