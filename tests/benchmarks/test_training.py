"""The comparisons of training: both loops do the same work, and each check can fail."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.training import __main__ as overhead_command
from benchmarks.training import curve
from benchmarks.training.overhead import Turns, alternate
from train_job.settings import TrainSettings


def test_a_worse_curve_is_no_success_and_a_better_one_is() -> None:
    theirs = {50: 2.0, 100: 1.0}
    assert not curve.verdict({50: 2.0, 100: 1.006}, theirs, 0.005)[0]
    assert curve.verdict({50: 2.5, 100: 1.004}, theirs, 0.005)[0]
    assert curve.verdict({100: 0.5}, theirs, 0.005)[0]


def test_the_documented_command_is_the_one_that_was_given() -> None:
    plain = ["--preset", "tiny", "--steps", "9", "--data", "tinyshakespeare"]
    for more in [], ["--every", "3"], ["--every", "3", "--tolerance", "0.25"]:
        said = curve.command(curve.parsed([*plain, *more]))
        assert said == " ".join(["python -m benchmarks.training.curve", *plain, *more])


def test_both_loops_do_the_same_work_in_turns(tmp_path: Path) -> None:
    wanted = {"eval_every": "2", "checkpoint_every": "4", "warmup_steps": "1"}
    turns = alternate(TrainSettings.from_flags("digits", root=tmp_path, overrides=wanted), 4)
    assert turns.disagreement < 1e-5
    assert len(turns.ours) == 4 and len(turns.bare) == 5, "each of ours is between two"
    assert turns.saving == [False, True, False, True]
    assert all(seconds > 0 for seconds in turns.ours)


def test_loops_that_differ_are_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(
        2, [1.0] * 5, [1.0] * 4, [False, True] * 2, [0.0] * 4, bare_losses=[1.0] * 5, our_losses=[1.0, 1.0, 1.1, 1.0]
    )  # fmt: skip
    monkeypatch.setattr(overhead_command, "measured", lambda *_: turns)
    assert overhead_command.main(["--turns", "4"]) == 1
    turns.our_losses[2] = 1.0
    assert overhead_command.main(["--turns", "4"]) == 0
    turns.outlasted = 1
    assert overhead_command.main(["--turns", "4"]) == 1, "what is left of a save is in the next turn"


def test_a_save_costs_what_its_turns_take_beyond_the_others() -> None:
    bare = [0.8, 1.2, 0.8, 3.2, 0.8]  # means of neighbours: 1, 1, 2, 2
    turns = Turns(2, bare=bare, ours=[1.1, 1.4, 2.2, 2.5], saving=[False, True, False, True])
    np.testing.assert_allclose(turns.save_seconds, [0.3, 0.3])
    np.testing.assert_allclose(turns.ratios(saving=False), [1.1, 1.1])
    assert turns.step_seconds == 0.4
