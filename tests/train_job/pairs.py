"""Two processes that train the toy together on this machine's CPU, each with its own device."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.once import OncePerRun
from train_job.checkpoints import load_params

HERE = Path(__file__).parent
DATA = argparse.__file__  # 100,000 bytes of real text
STEPS = 12  # of the toy preset
IMAGES = ("1.0", "1.1")
ALIVE_S = 300  # of a busy machine


@dataclass(frozen=True)
class Ended:
    """How one process ended: its exit code and all it wrote."""

    code: int
    said: str


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(
    index: int, port: int, root: Path, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Process `index` of two on the toy, whose batch of 4 gives each 2 rows. A later flag is the one that counts."""
    command = [sys.executable, "-m", "train_job", "--model", "toy_model:toy", "--data", DATA]
    place = {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # they train for milliseconds
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": str(index),
    }
    return subprocess.Popen(
        [*command, "--root", str(root), *flags],
        cwd=HERE,
        env={**os.environ, **place, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> Ended:
    try:
        said, _ = process.communicate(timeout=ALIVE_S)
    finally:
        process.kill()  # nothing, where it has ended
    return Ended(process.returncode, said)


def undisturbed(once: OncePerRun) -> Path:
    """The root of a toy run that two processes trained to its end; what they said lies beside it. Read only.

    Their images are different ones; the data of process 0's is DATA.
    """

    def make(root: Path) -> None:
        images = [{"PYTHON_OF_IMAGE": version} for version in IMAGES]
        first, second = run_pair(root, "--data", "stdlib", first=images[0], second=images[1])
        assert (first.code, second.code) == (0, 0), first.said + second.said
        (root / "said.json").write_text(json.dumps([first.said, second.said]))

    return once.folder("pair", make)


def weights(root: Path) -> dict[str, bytes]:
    """Those of the last step, by key."""
    return {
        key: np.asarray(value).tobytes() for key, value in load_params(root / "runs" / "toy", STEPS).items()
    }


def run_pair(
    root: Path, *flags: str, first: Mapping[str, str] | None = None, second: Mapping[str, str] | None = None
) -> tuple[Ended, Ended]:
    """Both from start to end; `first` and `second` are further variables of each."""
    port = free_port()
    pair = [start(index, port, root, flags, own) for index, own in enumerate((first, second))]
    try:
        return end(pair[0]), end(pair[1])
    finally:
        for process in pair:
            process.kill()
