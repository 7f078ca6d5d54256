"""A loss or a gradient that is no number: in no weight, in no checkpoint, named, and passed over only when asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from train_job.checkpoints import Checkpoints, list_steps
from train_job.errors import CheckFailed, StorageFailed
from train_job.job import train
from train_job.loop import Loop
from train_job.mesh import lay_out
from train_job.optimizer import optimizer
from train_job.presets import get_preset
from train_job.processes import ALONE
from train_job.rows import read_metrics
from train_job.settings import TrainSettings
from train_job.state import abstract_state, fresh_state
from train_job.steps import jit_step

ROWS = 16  # of a step
LOOKS = {"checkpoint_every": "6", "eval_every": "4"}

type Settings = Callable[..., TrainSettings]


@pytest.fixture
def spoilt(toy_settings: Settings, tmp_path: Path) -> Settings:
    def settings(root: str = "a", **flags: Any) -> TrainSettings:
        flags = {"model": "toy_model:spoilt", "data": None, "overrides": LOOKS, **flags}
        return toy_settings(tmp_path / root, **flags)

    return settings


def test_a_step_that_is_no_number_changes_nothing_on_the_device() -> None:
    """Neither weights nor what the optimizer remembers; the next batch is another one all the same."""
    preset = get_preset("toy_model:normalised")
    layout = lay_out({}, ROWS, ALONE)
    transform = optimizer(preset.hyper)
    state = fresh_state(preset.model, transform, 0, abstract_state(preset.model, transform, layout))
    step = jit_step(preset, preset.hyper, layout, state)
    batch = preset.task.load(None).batch(0, 0, ROWS)
    state, outcome = step(state, batch)
    assert np.isfinite(outcome.loss) and outcome.grad_norm > 0
    before = jax.device_get(state)
    state, outcome = step(state, {**batch, "pixels": batch["pixels"] * np.float32("nan")})
    assert np.isnan(outcome.loss)
    after = jax.device_get(state)
    assert int(after.step) == int(before.step) + 1 == 2
    jax.tree.map(np.testing.assert_array_equal, after._replace(step=before.step), before)
    state, outcome = step(state, batch)
    assert np.isfinite(outcome.loss)
    assert not np.array_equal(state.weights["norm.mean"], before.weights["norm.mean"])


def test_the_run_stops_there_and_goes_on_from_the_last_good_checkpoint_over_as_many_as_it_is_told(
    spoilt: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = spoilt()
    monkeypatch.setenv("NAN_AT", "6,7")
    with pytest.raises(
        CheckFailed,
        match=r"loss is nan at step 7 \(rows 96 to 111 in .* seed 0\).*last good: checkpoint of step 6",
    ) as caught:
        train(settings)
    assert caught.value.exit_code == 3
    assert list_steps(settings.run_dir)[-1].step == 6

    with pytest.raises(CheckFailed, match=r"at step 8 .*2 in a row, and --skip-nonfinite is 1"):
        train(spoilt(skip_nonfinite="1"))
    assert list_steps(settings.run_dir)[-1].step == 6
    assert (
        "step 7: loss is nan (rows 96 to 111 in the order of seed 0): passed over" in capsys.readouterr().out
    )

    monkeypatch.setenv("NAN_AT", "6,7,9")
    assert train(spoilt(skip_nonfinite="2")) == 0, "it is no part of what a run is"
    said = capsys.readouterr().out
    assert "no number  up to 2 steps in a row" in said
    assert (
        "step 8: loss is nan (rows 112 to 127 in the order of seed 0): passed over, 2 in a row of 2" in said
    )
    rows = read_metrics(settings.run_dir)
    assert [(row["step"], row["skipped_steps"]) for row in rows] == [(4, 0), (6, 0), (8, 2), (12, 3)]
    assert all(np.isfinite(value) for row in rows for value in row.values())
    assert ["grad_norm" in row for row in rows] == [True, True, False, True], "the mean of none is none"
    assert rows[2]["lr"] == rows[1]["lr"], "the schedule counts updates"


@pytest.mark.parametrize(("spoilt_at", "signal_at"), [("4", "4"), ("5", "")])
def test_neither_a_signal_nor_a_planned_save_keeps_it(
    spoilt_at: str, signal_at: str, spoilt: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both come while that step is under way, before anybody has heard of it."""
    monkeypatch.setenv("NAN_AT", spoilt_at)
    monkeypatch.setenv("STOP_AT", signal_at)
    settings = spoilt()
    with pytest.raises(CheckFailed, match=f"at step {int(spoilt_at) + 1} "):
        train(settings)
    assert list_steps(settings.run_dir) == []


def test_a_save_that_fails_in_the_background_ends_the_run_at_the_next_step(
    spoilt: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the next evaluation, which can be an hour away."""
    looked: list[int] = []
    real = Loop._look, Checkpoints.save

    def look(self: Loop, state: Any, done: int, *rest: Any) -> dict[str, float]:
        looked.append(done)
        return real[0](self, state, done, *rest)

    class Failed:
        def result(self) -> None:
            raise OSError(28, "No space left on device")

    def save(self: Checkpoints, step: int, *rest: Any) -> None:
        if step == 6:
            self._pending = (step, Failed())  # type: ignore[assignment]
        else:
            real[1](self, step, *rest)

    monkeypatch.setattr(Loop, "_look", look)
    monkeypatch.setattr(Checkpoints, "save", save)
    settings = spoilt()
    with pytest.raises(StorageFailed, match=r"checkpoints/6: no space .*last good: no checkpoint") as caught:
        train(settings)
    assert caught.value.exit_code == 4
    assert looked == [4, 6]
