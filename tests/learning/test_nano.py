"""A run learns what a plain loop of the same seed learns, whose model, optimizer and schedule are written out anew."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training import curve, reference
from train_job.presets import get_preset

STEPS, EVERY = 120, 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, as the command has them compared."""
    root = tmp_path_factory.mktemp("curve")
    flags = ["--preset", "nano", "--steps", f"{STEPS}", "--every", f"{EVERY}", "--data", "stdlib"]
    assert curve.main([*flags, "--root", str(root)]) == 0
    return root


def losses_of_reference(root: Path) -> dict[int, float]:
    return {
        int(step): loss for step, loss in json.loads((root / "reference.json").read_text())["losses"].items()
    }


def test_they_agree_all_the_way(root: Path) -> None:
    rows = [json.loads(line) for line in (root / "runs" / "nano" / "metrics.jsonl").read_text().splitlines()]
    ours, theirs = {row["step"]: row["val_loss"] for row in rows}, losses_of_reference(root)
    assert list(ours) == list(theirs) == [40, 80, 120]
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-3)
    assert ours[STEPS] < ours[EVERY] - 0.1


def test_a_plain_loop_with_one_number_changed_does_not_agree(root: Path, tmp_path: Path) -> None:
    """So that agreement says something."""
    preset = get_preset("nano")
    config, data = preset.model, preset.task.load("stdlib")
    hyper = dataclasses.replace(preset.hyper, steps=EVERY, beta1=0.8)
    (_, found), *_ = reference.train(config, hyper, data, EVERY, tmp_path / "reference.npz")
    assert abs(found / losses_of_reference(root)[EVERY] - 1) > 4e-3
