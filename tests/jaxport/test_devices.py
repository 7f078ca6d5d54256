"""A device that was asked for and is not there ends the command; no other takes its place."""

import os
from pathlib import Path

import pytest

from tests.servers import jaxport

COMMANDS = {
    "train": ("train", "--preset", "digits", "--steps", "1", "--root"),
    "serve": ("serve", "--grpc-port", "0", "--http-port", "0", "--models"),
    "warm": ("serve", "--warm-only", "--wait", "--models"),
}


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="needs a machine without a GPU of NVIDIA's")
@pytest.mark.parametrize(
    ("command", "platforms"),
    [("train", "cuda"), ("train", "cuda,cpu"), ("serve", "cuda"), ("warm", "cuda,cpu")],
)
def test_a_device_that_is_asked_for_and_not_there_is_exit_code_4(
    command: str, platforms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "JAX_PLATFORMS", platforms)
    done = jaxport(*COMMANDS[command], str(tmp_path))
    assert done.returncode == 4, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: JAX_PLATFORMS={platforms}: ") and "Traceback" not in done.stderr, (
        done.stderr
    )
