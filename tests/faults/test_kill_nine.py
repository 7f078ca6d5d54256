"""kill -9 at random moments: what comes out at the end is what would have come out anyway, bit for bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from train_job.checkpoints import list_steps, load_params

STEPS = 2000
KILLS = 5
TOY = Path(__file__).parents[1] / "train_job"
_FIRST_SAVE_S = 120.0


def start(root: Path, checkpoint_every: int = STEPS) -> subprocess.Popen[bytes]:
    """The toy, whose steps take a millisecond; how often it saves does not change the weights."""
    command = [sys.executable, "-m", "train_job", "--model", "toy_model:toy", "--data", __file__]
    command += ["--steps", str(STEPS), "--root", str(root)]
    upkeep = ["--set", f"checkpoint_every={checkpoint_every}", "--set", f"eval_every={STEPS}"]
    return subprocess.Popen(
        [*command, *upkeep],
        cwd=TOY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },  # what is saved there is time in the compiler
    )


def wait_for_a_save_after(run_dir: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Returns once a checkpoint later than `step` is complete, or the run has ended."""
    deadline = time.monotonic() + _FIRST_SAVE_S
    while process.poll() is None:
        if any(
            int(path.name) > step for path in (run_dir / "checkpoints").glob("*") if path.name.isdecimal()
        ):
            return
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.01)


def weights(run_dir: Path) -> dict[str, bytes]:
    return {key: np.asarray(value).tobytes() for key, value in load_params(run_dir, STEPS).items()}


def test_a_run_killed_five_times_ends_with_the_weights_of_one_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TOY)
    assert start(tmp_path / "undisturbed").wait(timeout=300) == 0
    undisturbed = weights(tmp_path / "undisturbed" / "runs" / "toy")
    chance = random.Random(20)
    run_dir = tmp_path / "runs" / "toy"
    killed, latest = 0, 0
    while killed < KILLS:
        process = start(tmp_path, checkpoint_every=3)
        wait_for_a_save_after(run_dir, latest, process)
        time.sleep(chance.uniform(0, 0.4))  # steps, a save and a deletion fit in this
        if process.poll() is not None:
            break  # ended before it could be killed again
        process.kill()
        process.wait()
        killed += 1
        latest = list_steps(run_dir)[-1].step
    assert killed == KILLS
    assert start(tmp_path).wait(timeout=300) == 0
    assert not list((run_dir / "checkpoints").glob("*tmp*"))
    assert weights(run_dir) == undisturbed
