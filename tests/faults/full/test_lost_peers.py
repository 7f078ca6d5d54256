"""Two processes of a run, of which one is told to stop, and then one and the other are killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.once import OncePerRun
from tests.train_job import pairs
from train_job.checkpoints import list_steps
from train_job.job import train
from train_job.settings import TrainSettings

LOST = "error: a peer process was lost"


def test_a_pair_that_loses_either_ends_with_the_weights_of_one_left_alone(
    once: OncePerRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pairs.HERE)
    root, upkeep = tmp_path / "root", ("--set", "checkpoint_every=3")

    def saved() -> int:
        return list_steps(root / "runs" / "toy")[-1].step

    # A signal to process 1 alone: both save the same step, a few after it.
    first, second = pairs.run_pair(root, *upkeep, second={"STOP_AT": "2"})
    assert (first.code, second.code) == (75, 75), first.said + second.said
    for ended in (first, second):
        assert f"preempted: saved step {saved()} of {pairs.STEPS}" in ended.said
    assert 3 <= saved() <= 6
    shutil.copytree(root, tmp_path / "copy")

    first, second = pairs.run_pair(root, *upkeep, second={"KILL_AT": "8"})
    assert (first.code, second.code) == (75, 137), first.said + second.said
    assert LOST in first.said

    first, second = pairs.run_pair(root, *upkeep, first={"KILL_AT": "10"})  # the coordinator
    assert (first.code, second.code) == (137, 75), first.said + second.said
    assert LOST in second.said

    first, second = pairs.run_pair(root, *upkeep)
    assert (first.code, second.code) == (0, 0), first.said + second.said
    assert pairs.weights(root) == pairs.weights(pairs.undisturbed(once))

    # What two have saved, one goes on from.
    assert (
        train(TrainSettings.from_flags(model="toy_model:toy", root=tmp_path / "copy", data=pairs.DATA)) == 0
    )
