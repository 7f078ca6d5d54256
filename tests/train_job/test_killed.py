"""kill -9 inside a save; `python -m tests.faults.kills` does it as often as we claim, and with SIGTERM."""

import signal
from collections.abc import Sequence
from pathlib import Path

from tests.faults.kills import IN_A_SAVE, Moment, Trial
from tests.faults.starts import DATA
from train_job.job import train
from train_job.settings import TrainSettings

STEPS = 60


def in_process(root: Path, flags: Sequence[str]) -> int:
    overrides = dict(flag.split("=") for flag in flags if "=" in flag)
    settings = TrainSettings.from_flags(
        model="tests.faults.struck:toy", root=root, data=str(DATA), steps=STEPS, overrides=overrides
    )
    return train(settings)


def test_a_run_killed_inside_a_save_ends_with_the_weights_of_one_left_alone(
    tmp_path: Path, jax_cache: Path
) -> None:
    trial = Trial(tmp_path, 1, STEPS, jax_cache, in_process)
    strikes = [Moment(signal.SIGKILL, IN_A_SAVE, 0.4, (0,), parent=False)]
    assert trial.run(strikes).faults == []
    [(place, _)] = trial.tally
    assert "a save on its way" in place
