"""A preset with an optimizer of its own in AdamW's place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from train_job.checkpoints import load_params
from train_job.errors import FingerprintMismatch
from train_job.job import train
from train_job.optimizer import optimizer, schedule, updates_done
from train_job.rows import read_metrics
from train_job.runs import read_run
from train_job.settings import Hyperparameters, TrainSettings

type Settings = Callable[..., TrainSettings]

MODEL = "toy_model:with_momentum"


def test_a_run_with_an_optimizer_of_its_own_is_resumed_bit_for_bit(
    toy_settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone, stopped = (toy_settings(tmp_path / name, model=MODEL) for name in ("alone", "stopped"))
    assert train(alone) == 0
    with monkeypatch.context() as patch:
        patch.setenv("STOP_AT", "6")
        assert train(stopped) == 75
    assert train(stopped) == 0
    first, second = (load_params(each.run_dir, 12) for each in (alone, stopped))
    for name, weight in first.items():
        np.testing.assert_array_equal(weight, second[name])
    rows = read_metrics(stopped.run_dir)
    assert [row["lr"] for row in rows] == [row["lr"] for row in read_metrics(alone.run_dir)]
    assert [row["skipped_steps"] for row in rows] == [0, 0, 0]
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]
    assert "optimizer  toy_model:momentum, behind clipping at 1" in capsys.readouterr().out
    assert read_run(alone.run_dir).fingerprint["optimizer"] == "toy_model:momentum"
    cure = "optimizer was 'toy_model:momentum' when .* is 'toy_model:lion'; go back to the optimizer the run began"
    with pytest.raises(FingerprintMismatch, match=cure):
        train(toy_settings(tmp_path / "alone", model="toy_model:with_lion"))


def test_it_makes_the_updates_that_it_makes_by_itself_behind_the_clipping() -> None:
    hyper = Hyperparameters(learning_rate=0.5, warmup_steps=2, clip_norm=1.0, steps=9)
    weights = {"a.kernel": np.ones((3, 2), np.float32), "b.bias": np.ones(2, np.float32)}
    plain = optax.sgd(schedule(hyper), momentum=0.9)
    wrapped = optimizer(hyper, lambda _: plain)
    state, own = wrapped.init(weights), plain.init(weights)
    for number in range(4):
        gradients = jax.tree.map(lambda value, number=number: value * (number + 1), weights)
        scale = min(1.0, 1.0 / float(optax.tree.norm(gradients)))
        found, state = wrapped.update(gradients, state, weights)
        wanted, own = plain.update(jax.tree.map(lambda value, s=scale: value * s, gradients), own, weights)
        for name, update in wanted.items():
            np.testing.assert_allclose(found[name], update, rtol=1e-6)
        assert updates_done(state) == number + 1
