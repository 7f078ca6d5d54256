"""Two processes of a run, of which one is told to stop, and one and then the other killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.train_job import pairs
from train_job.checkpoints import list_steps, load_params

STEPS = 12
LOST = "error: a peer process was lost"


def weights(run_dir: Path) -> dict[str, bytes]:
    return {key: np.asarray(value).tobytes() for key, value in load_params(run_dir, STEPS).items()}


def saved(run_dir: Path) -> list[int]:
    return [info.step for info in list_steps(run_dir)]


def test_a_pair_that_loses_either_ends_with_the_weights_of_one_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pairs.HERE)
    flags = ["--data", __file__, "--set", "checkpoint_every=2"]
    undisturbed = pairs.run_pair(tmp_path / "undisturbed", *flags)
    assert [ended.code for ended in undisturbed] == [0, 0]
    root, run_dir = tmp_path / "root", tmp_path / "root" / "runs" / "toy"

    # A signal to process 1 alone: both save the same step, a few after it.
    first, second = pairs.run_pair(root, *flags, second={"STOP_AT": "2"})
    assert (first.code, second.code) == (75, 75)
    (step,) = {line for line in (first.said + second.said).splitlines() if line.startswith("preempted: ")}
    assert f"saved step {saved(run_dir)[-1]} of {STEPS}" in step
    assert 3 <= saved(run_dir)[-1] <= 6
    shutil.copytree(root, tmp_path / "copy")

    first, second = pairs.run_pair(root, *flags, second={"KILL_AT": "8"})
    assert (first.code, second.code) == (75, 137)
    assert LOST in first.said

    first, second = pairs.run_pair(root, *flags, first={"KILL_AT": "10"})  # the coordinator
    assert (first.code, second.code) == (137, 75)
    assert LOST in second.said

    first, second = pairs.run_pair(root, *flags)
    assert (first.code, second.code) == (0, 0)
    assert weights(run_dir) == weights(tmp_path / "undisturbed" / "runs" / "toy")
