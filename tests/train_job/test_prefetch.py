"""Batches made ahead: in order, each once, not too many, and an end that waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from train_job import prefetch
from train_job.data.text import TextData
from train_job.errors import EnvironmentUnfit
from train_job.job import train
from train_job.prefetch import Prefetch
from train_job.progress import interval_line
from train_job.rows import read_metrics
from train_job.settings import TrainSettings

PATIENCE_S = 60


class Maker:
    """Makes batches that say their step; from `held` on only once `go` is set."""

    def __init__(self, held: int | None = None) -> None:
        self.made: list[int] = []
        self.asked, self.go = threading.Semaphore(0), threading.Event()
        self._held = held

    def __call__(self, step: int) -> dict[str, np.ndarray]:
        self.asked.release()
        if self._held is not None and step >= self._held:
            assert self.go.wait(PATIENCE_S)
        self.made.append(step)
        return {"step": np.asarray(step)}


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


def test_each_step_gets_its_batch_once_and_in_order() -> None:
    make = Maker()
    with Prefetch(make, 7, 40) as batches:
        taken = [int(batches.take(step)["step"]) for step in range(7, 40)]
    assert taken == make.made == list(range(7, 40))
    assert not running()


def test_no_more_is_made_ahead_than_two_and_one_in_hand() -> None:
    make = Maker()
    with Prefetch(make, 0, 100) as batches:
        for _ in range(3):
            assert make.asked.acquire(timeout=PATIENCE_S)
        assert not make.asked.acquire(timeout=0.2), "the queue is full"
        batches.take(0)
        assert make.asked.acquire(timeout=PATIENCE_S), "and has room again"
        assert not make.asked.acquire(timeout=0.2)
    assert not running()
    assert len(make.made) < 7


def test_a_batch_of_another_step_is_never_trained_on() -> None:
    with Prefetch(Maker(), 5, 9) as batches, pytest.raises(RuntimeError, match=r"step 6 .* batch of step 5"):
        batches.take(6)


def test_a_run_that_is_to_stop_does_not_wait_for_a_volume_that_does_not_answer() -> None:
    make, told = Maker(held=1), threading.Event()
    with Prefetch(make, 0, 9, told.is_set) as batches:
        assert batches.take(0) is not None
        told.set()
        assert batches.take(1) is None
        make.go.set()


def test_what_making_a_batch_raises_is_raised_where_it_is_taken() -> None:
    def make(step: int) -> dict[str, Any]:
        if step == 3:
            raise EnvironmentUnfit("cannot read the shard")
        return {}

    with Prefetch(make, 0, 9) as batches:
        assert [batches.take(step) for step in range(3)] == [{}, {}, {}]
        with pytest.raises(EnvironmentUnfit, match="cannot read the shard"):
            batches.take(3)
    assert not running()


def test_the_wait_for_batches_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 1.5, 10.0, 14.0])
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    with Prefetch(Maker(), 0, 2) as batches:
        batches.take(0)
        assert batches.waited == 0.5
        batches.take(1)
    assert batches.waited == 4.5


def test_the_line_of_an_interval_says_it_where_data_are_slow() -> None:
    row = {"step": 4, "lr": 0.1, "tokens_per_s": 9.0, "step_seconds": 2.0}
    assert "data" not in interval_line({**row, "input_wait_seconds": 0.09}, 8, "tokens")
    assert "waits for data 30%" in interval_line({**row, "input_wait_seconds": 0.6}, 8, "tokens")
    assert "data" not in interval_line({"step": 4, "lr": 0.1, "tokens_per_s": 9.0}, 8, "tokens")


def test_a_read_that_hangs_does_not_keep_the_run_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_LEFT_ALONE_S", 0.1)
    make = Maker(held=1)
    with Prefetch(make, 0, 9) as batches:
        batches.take(0)
    assert running(), "it is a daemon, and still waits"
    make.go.set()
    batches._thread.join(PATIENCE_S)
    assert not running() and make.made == [0, 1]


def test_a_run_ends_with_the_error_of_its_data_and_says_how_long_it_waited(
    toy_settings: Callable[..., TrainSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = toy_settings(tmp_path)
    batch = TextData.batch

    def failing(self: TextData, seed: int, step: int, *rest: Any) -> dict[str, np.ndarray]:
        if step == 6:
            raise EnvironmentUnfit("cannot read the shard")
        return batch(self, seed, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(TextData, "batch", failing)
        with pytest.raises(EnvironmentUnfit, match="cannot read the shard"):
            train(settings)
    (row,) = read_metrics(settings.run_dir)
    assert row["step"] == 4 and 0 <= row["input_wait_seconds"] <= row["step_seconds"]
    assert not running()
