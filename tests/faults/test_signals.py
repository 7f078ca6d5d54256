"""Signals at every time of a server's life, from whoever starts it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.server_process import ROOT, ServerProcess

# Ready to be told as soon as the command has begun, before it has imported anything slow.
TOLD_EARLY = """
import os, signal, sys, importlib
from jaxport import cli
real = importlib.import_module
def told(name, *rest):
    os.kill(os.getpid(), int(sys.argv[1]))
    return real(name, *rest)
importlib.import_module = told
sys.exit(cli.main(["serve", "--models", sys.argv[2]]))
"""


FROM_HERE = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_it_has_begun_ends_it_without_a_word(number: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOLD_EARLY, str(int(number)), str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + number, "")


def may_unshare() -> bool:
    command = shutil.which("unshare")
    return command is not None and not subprocess.run(
        [command, "-p", "-f", "true"], capture_output=True, check=False
    ).returncode  # fmt: skip


def test_a_trainer_that_was_told_before_it_has_begun_is_to_be_started_again(tmp_path: Path) -> None:
    train = TOLD_EARLY.replace('["serve", "--models", sys.argv[2]]', '["train", "--preset", "nano"]')
    command = [sys.executable, "-c", train, str(int(signal.SIGTERM))]
    assert subprocess.run(command, timeout=30, check=False, cwd=tmp_path, env=FROM_HERE).returncode == 75


# What each prints once it is where it is to be told; None: at once, while it imports.
JOBS = {
    "importing": (("serve", "--grpc-port", "0", "--http-port", "0", "--models", "models"), None),
    "warm": (
        ("serve", "--warm-only", "--wait", "--poll-seconds", "0.1", "--models", "models"),
        "waiting for a first model",
    ),
    "export": (("export", "--run", "none", "--wait"), "waiting for"),
}


@pytest.mark.skipif(not may_unshare(), reason="needs to make a process namespace")
@pytest.mark.parametrize("job", JOBS)
def test_process_one_of_a_container_ends_at_the_first_sigterm(job: str, tmp_path: Path) -> None:
    flags, word = JOBS[job]
    command = ["unshare", "-p", "-f", "--kill-child", sys.executable, "-u", "-m", "jaxport", *flags]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=FROM_HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        if word is None:
            time.sleep(0.5)
        else:
            assert any(word in line for line in process.stdout)
        inside = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(inside[0]), signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_under_nohup_it_outlives_its_terminal(one_model: Path, cache: Path) -> None:
    with ServerProcess(one_model, "--cache-dir", str(cache), prefix=("nohup",)) as server:
        server.ready()
        server.signal(signal.SIGHUP)
        time.sleep(0.3)
        assert server.get("/readyz") == (200, "ready\n")
        assert not [line for line in server.lines if "stopping" in line]
        server.signal()
        assert server.wait() == 0
