"""A run of the toy, killed with kill -9 at random moments and started again until its end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from train_job.checkpoints import list_steps, load_params

TOY = Path(__file__).parents[1] / "train_job"
DATA = __file__
_FIRST_SAVE_S = 120.0


def start(root: Path, steps: int, checkpoint_every: int) -> subprocess.Popen[bytes]:
    """The toy, whose steps take a millisecond; how often it saves does not change the weights."""
    command = [sys.executable, "-m", "train_job", "--model", "toy_model:toy", "--data", DATA]
    command += ["--steps", str(steps), "--root", str(root)]
    upkeep = ["--set", f"checkpoint_every={checkpoint_every}", "--set", f"eval_every={steps}"]
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


def kill(root: Path, kills: int, steps: int, chance: random.Random) -> int:
    """Starts the run and kills it, so many times; returns how often it was alive to be killed."""
    run_dir = root / "runs" / "toy"
    latest = 0
    for killed in range(kills):
        process = start(root, steps, checkpoint_every=3)
        _wait_for_a_save_after(run_dir, latest, process)
        time.sleep(chance.uniform(0, 0.4))  # steps, a save and a deletion fit in this
        if process.poll() is not None:
            return killed  # ended before it could be killed again
        process.kill()
        process.wait()
        latest = list_steps(run_dir)[-1].step
    return kills


def weights(root: Path, steps: int) -> dict[str, bytes]:
    return {
        key: np.asarray(value).tobytes() for key, value in load_params(root / "runs" / "toy", steps).items()
    }


def _wait_for_a_save_after(run_dir: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Returns once a checkpoint later than `step` is complete, or the run has ended."""
    deadline = time.monotonic() + _FIRST_SAVE_S
    while process.poll() is None:
        if any(
            int(path.name) > step for path in (run_dir / "checkpoints").glob("*") if path.name.isdecimal()
        ):
            return
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.01)
