"""The parent of a process with peers: hands signals on, ends as the child ends, and knows JAX's one abort."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.test_signals import may_unshare
from train_job.processes import Processes
from train_job.supervisor import supervised

FATAL = (
    "F1130 03:55:54.450582 8665 client.h:86] Terminating process because the JAX distributed service detected "
    "fatal errors. absl::Status: UNAVAILABLE: Failed to send RPC\\n    @ 0x7fed856f81b4 SendToLog()\\n"
)
PROGRAM = """
import os, signal, sys, time
from train_job.processes import Processes
from train_job.supervisor import supervised
def work():
    print("child", os.getpid(), flush=True)
{work}
raise SystemExit(supervised(work, Processes(2, 0, "here:1", wait_s=7)))
"""
WAITS = """
    def told(number, frame): print("told", number, flush=True); raise SystemExit(75)
    signal.signal(signal.SIGTERM, told); print("waits", flush=True); time.sleep(30)
"""


def command(work: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(work=work)]


def run(work: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(work), capture_output=True, text=True, timeout=30, check=False)


def begin(arguments: list[str]) -> tuple[subprocess.Popen[str], int]:
    """The parent, and the child's id as the child knows it, once the child waits."""
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline().split()[1])
    assert process.stdout.readline() == "waits\n"
    return process, child


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""  # of one that has ended it is empty
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_alone_has_no_child() -> None:
    assert supervised(os.getpid, Processes()) == os.getpid()


@pytest.mark.parametrize(
    ("work", "code"),
    [
        ("    return 3", 3),
        ("    raise SystemExit(4)", 4),
        ("    os._exit(75)", 75),
        ("    os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("    os.write(2, b'a fault of its own\\n'); os.abort()", 134),
    ],
)
def test_it_ends_as_the_child_ends(work: str, code: int) -> None:
    done = run(work)
    assert done.returncode == code
    assert done.stderr == ("a fault of its own\n" if code == 134 else "")


def test_what_jax_aborts_for_a_lost_peer_becomes_a_line_and_75() -> None:
    done = run(f"    os.write(2, b'a warning\\n' + b'''{FATAL}'''); os.abort()")
    assert done.returncode == 75
    assert done.stderr == (
        "a warning\nerror: a peer process was lost (UNAVAILABLE); start again to go on from the last complete "
        "checkpoint\n"
    )


@pytest.mark.parametrize("end", ["os.abort()", "os._exit(75)"])
def test_a_child_that_noticed_as_well_is_not_spoken_over(end: str) -> None:
    done = run(f"    os.write(2, b'''{FATAL}error: a peer process was lost\\n    @ more\\n'''); {end}")
    assert (done.returncode, done.stderr) == (75, "error: a peer process was lost\n")


def test_a_peer_that_never_came_is_told_from_one_that_was_lost() -> None:
    done = run(f"    os.write(2, b'''{FATAL}RPC: /xla.coordination/RegisterTask\\n'''); os.abort()")
    assert done.returncode == 75
    assert "error: JAX_COORDINATOR_ADDRESS: not all of 2 processes were at here:1 within 7 s" in done.stderr


def test_words_of_jax_before_another_end_are_not_kept_back() -> None:
    done = run(f"    os.write(2, b'''{FATAL}'''); os._exit(9)")
    assert done.returncode == 9
    assert "SendToLog()" in done.stderr


def test_a_signal_is_handed_on_once() -> None:
    process, child = begin(command(WAITS))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (75, f"told {int(signal.SIGTERM)}\n")
    assert not Path(f"/proc/{child}").exists()


def test_the_child_does_not_outlive_a_kill_of_the_parent() -> None:
    process, child = begin(command(WAITS))
    process.kill()
    out, _ = process.communicate(timeout=10)  # to the end of what the child, too, could write to
    assert (process.returncode, out) == (-signal.SIGKILL, "")
    deadline = time.monotonic() + 10
    while lives(child):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.01)


@pytest.mark.skipif(not may_unshare(), reason="needs to make a process namespace")
def test_as_process_one_of_a_container_it_hands_signals_on() -> None:
    """The kernel keeps from process 1 every signal that it has no handler for."""
    unshare = [str(shutil.which("unshare")), "-p", "-f", "--kill-child"]
    process, _ = begin([*unshare, *command(WAITS)])
    inside = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(inside[0]), signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (75, f"told {int(signal.SIGTERM)}\n")
