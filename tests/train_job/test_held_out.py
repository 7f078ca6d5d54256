"""The metrics of given weights on data that a run never saw."""

from pathlib import Path

import numpy as np
import pytest

from train_job.fingerprint import DATA
from train_job.held_out import held_out
from train_job.presets import get_preset
from train_job.runs import RunRecord
from train_job.weights import initialise

PRESET = "toy_model:mlp"


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    return {name: np.asarray(w) for name, w in initialise(get_preset(PRESET).model, 0).items()}


def record(sha256: str, **data: str) -> RunRecord:
    return RunRecord("r", PRESET, {}, {DATA: sha256}, data, {}, {}, "2026-01-01T00:00:00+00:00")


def test_each_of_several_weights_has_its_metrics(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    data = get_preset(PRESET).task.load(None)
    wrong = {name: -w for name, w in weights.items()}
    found = held_out(tmp_path, record(data.info.sha256), [weights, wrong, weights])
    assert found is not None
    headline, (one, other, again) = found
    assert headline == "val_accuracy" and one == again != other
    assert 0 <= one[headline] <= 1 and one["val_loss"] > 0


@pytest.mark.parametrize("data", [{}, {"source": "stdlib", "name": "gone"}])
def test_data_that_is_not_the_runs_measures_nothing(
    data: dict[str, str], tmp_path: Path, weights: dict[str, np.ndarray]
) -> None:
    assert held_out(tmp_path, record("0" * 64, **data), [weights]) is None
