"""Training with peers happens in a child, because JAX aborts a process that has lost one.

Its coordination service knows no other answer to a dead coordinator, a silent peer or a peer that never came: a
line for its authors, a stack trace and SIGABRT. To a Job that is a crash, though nothing is wrong here and a
second start goes on. So a parent without JAX or threads of its own waits for the child, hands signals on, and
turns that one abort into a line for people and exit 75. What else ends the child ends the parent likewise.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

from train_job.preemption import EXIT_PREEMPTED
from train_job.processes import Processes

_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WAITED_FOR = {*_HANDED_ON, signal.SIGCHLD}
_FATAL = re.compile(rb"^F\d{4} .*JAX distributed service detected fatal errors")
_OF_PEERS = re.compile(rb"^[WE]\d{4} [^\]]*\bcoordination_(service|client)")
_HELD_S = 10  # a peer that is lost ends the child within moments
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STATUS = re.compile(rb"absl::Status: ([A-Z_]+)")


def supervised(work: Callable[[], int], processes: Processes) -> int:
    """`work()`'s exit code. With peers it runs in a forked child, so call this before anything starts a thread."""
    if processes.alone:
        return work()
    signals_before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    errors, errors_of_child = os.pipe()
    lifeline, lifeline_of_parent = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(errors)
        os.close(lifeline_of_parent)
        _become_child(errors_of_child, lifeline)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals_before)
        return work()
    os.close(errors_of_child)
    os.close(lifeline)
    relay = _Relay(os.fdopen(errors, "rb"))
    status = _wait(child)
    relay.join(timeout=5)
    return _exit_code(status, relay, processes)


def _become_child(errors: int, lifeline: int) -> None:
    """A group of its own, so that Ctrl-C comes once, from the parent; and no life after the parent's."""
    os.setpgid(0, 0)
    os.dup2(errors, 2)
    os.close(errors)

    def end_with_parent() -> None:
        os.read(lifeline, 1)  # nothing is ever written: it ends when the parent does, kill -9 included
        os._exit(128 + signal.SIGKILL)

    threading.Thread(target=end_with_parent, name="lifeline", daemon=True).start()
    # That thread does not run where the child is halted, or in a call that lets no other thread of Python run, and the
    # run's lock would be held so long. Where the kernel knows how, it ends the child itself.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(child: int) -> int:
    """The child's wait status. The signals are blocked, so none comes between two of these lines unseen."""
    while True:
        number = signal.sigwait(_WAITED_FOR)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if number in _HANDED_ON:
            os.kill(child, number)


def _exit_code(status: int, relay: _Relay, processes: Processes) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGABRT and relay.fatal:
        if not relay.explained:
            print(f"error: {_reason(relay.fatal, processes)}", file=sys.stderr, flush=True)
        return EXIT_PREEMPTED
    if not (code == EXIT_PREEMPTED and relay.explained):  # else the child had found out by itself
        relay.show_withheld()
    return code if code >= 0 else 128 - code


def _reason(fatal: bytes, processes: Processes) -> str:
    found = _STATUS.search(fatal)
    status = found[1].decode() if found else "no status"
    if b"RegisterTask" in fatal:
        return (
            f"JAX_COORDINATOR_ADDRESS: not all of {processes.count} processes were at {processes.coordinator} within "
            f"{processes.wait_s} s ({status}); start again, or raise --wait-for-peers"
        )
    return f"a peer process was lost ({status}); start again to go on from the last complete checkpoint"


class _Relay(threading.Thread):
    """Passes the child's errors on as they come, but for what JAX says of a peer.

    That is kept back, with what follows it, until it is known how the child ends. A child that lives on for
    `_HELD_S` had only a warning, which is shown then; after JAX's fatal line there is no living on.
    """

    def __init__(self, source: BinaryIO) -> None:
        super().__init__(name="errors", daemon=True)
        self._source = source
        self._writing = threading.Lock()
        self._withheld = b""
        self.fatal = b""
        self.explained = False  # by the child itself, which may notice in the same moment
        self.start()

    def run(self) -> None:
        for line in self._source:
            with self._writing:
                self._pass_on(line)

    def _pass_on(self, line: bytes) -> None:
        own = line.startswith(b"error: ")
        self.explained |= own
        if own:
            _say(line)
        elif self.fatal or _FATAL.match(line):
            self.fatal += line
        elif self._withheld or _OF_PEERS.match(line):
            if not self._withheld:
                timer = threading.Timer(_HELD_S, self._show_warning)
                timer.daemon = True
                timer.start()
            self._withheld += line
        else:
            _say(line)

    def _show_warning(self) -> None:
        with self._writing:
            if not self.fatal:
                _say(self._withheld)
                self._withheld = b""

    def show_withheld(self) -> None:
        """For an end that was not what these lines said."""
        with self._writing:
            _say(self._withheld + self.fatal)
            self._withheld = b""


def _say(lines: bytes) -> None:
    """Also to nobody: a child whose errors are not taken from it any more would stand still."""
    with suppress(OSError):
        os.write(2, lines)
