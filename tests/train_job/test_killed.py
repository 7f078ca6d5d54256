"""kill -9 once, while it saves; tests/faults/full does it as often as we claim."""

import random
from pathlib import Path

from tests.faults import kills
from train_job.job import train
from train_job.settings import TrainSettings

STEPS = 400


def test_a_run_killed_once_ends_with_the_weights_of_one_left_alone(tmp_path: Path) -> None:
    assert kills.kill(tmp_path, 1, STEPS, random.Random(20)) == 1
    for root in (tmp_path, tmp_path / "undisturbed"):
        settings = TrainSettings.from_flags(
            model="toy_model:toy",
            root=root,
            data=kills.DATA,
            steps=STEPS,
            overrides={"checkpoint_every": str(STEPS), "eval_every": str(STEPS)},
        )
        assert train(settings) == 0
    assert not list((tmp_path / "runs" / "toy" / "checkpoints").glob("*tmp*"))
    assert kills.weights(tmp_path, STEPS) == kills.weights(tmp_path / "undisturbed", STEPS)
