"""kill -9 at random moments: what comes out at the end is what would have come out anyway, bit for bit."""

import random
from pathlib import Path

import pytest

from tests.faults import kills

STEPS = 2000
KILLS = 5


def test_a_run_killed_five_times_ends_with_the_weights_of_one_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(kills.TOY)
    assert kills.start(tmp_path / "undisturbed", STEPS, STEPS).wait(timeout=300) == 0
    assert kills.kill(tmp_path, KILLS, STEPS, random.Random(20)) == KILLS
    assert kills.start(tmp_path, STEPS, STEPS).wait(timeout=300) == 0
    assert not list((tmp_path / "runs" / "toy" / "checkpoints").glob("*tmp*"))
    assert kills.weights(tmp_path, STEPS) == kills.weights(tmp_path / "undisturbed", STEPS)
