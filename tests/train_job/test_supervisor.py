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
# No other thread of Python runs meanwhile: minutes, if nobody ends it.
BUSY = """
    import re; print("waits", flush=True); re.match("(a+)+b", "a" * 40)
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


POLLED = """E1130 08:54:26.759992   14681 coordination_service.cc:1518] [11712] Use error polling to propagate: UNAVAILABLE:
1
The tasks have crashed. [type.googleapis.com/tensorflow.CoordinationServiceError='']

E1130 08:54:26.760596   14692 coordination_service_agent.cc:288] Polled an error from coordination service.
"""


def test_what_jax_logs_of_a_lost_peer_is_left_out_beside_the_line_that_says_it() -> None:
    done = run(f"    os.write(2, b'''{POLLED}error: a peer process was lost\n'''); os._exit(75)")
    assert (done.returncode, done.stderr) == (75, "error: a peer process was lost\n")


@pytest.mark.parametrize(
    ("end", "code"), [("os._exit(0)", 0), ("os._exit(75)", 75), ("os._exit(9)", 9), ("os.abort()", 134)]
)
def test_what_jax_logs_of_a_peer_is_shown_where_nothing_else_explains_the_end(end: str, code: int) -> None:
    done = run(f"    os.write(2, b'''{POLLED}more\n'''); {end}")
    assert (done.returncode, done.stderr) == (code, f"{POLLED}more\n")


def test_what_jax_logs_of_a_peer_is_shown_while_the_child_lives_on() -> None:
    work = f"    os.write(2, b'''{POLLED}'''); time.sleep(30)"
    program = PROGRAM.replace(
        "def work", "import train_job.supervisor; train_job.supervisor._HELD_S = 0.1\ndef work"
    )
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-c", program.format(work=work)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        while len(shown) < len(POLLED):
            shown += os.read(process.stderr.fileno(), 4096)
        process.kill()
    assert shown.decode() == POLLED


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


@pytest.mark.parametrize("work", [WAITS, BUSY])
def test_the_child_does_not_outlive_a_kill_of_the_parent(work: str) -> None:
    """It holds the run's lock, and would meet the next start there."""
    process, child = begin(command(work))
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
