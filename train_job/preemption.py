"""Signals, in one place: SIGTERM (a preempted pod), SIGINT (a person) and SIGHUP (a closed terminal) mean save,
then exit 75."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from train_job.runs import has_checkpoint

EXIT_PREEMPTED = 75
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Preemption:
    """Turns a signal into a flag that the training loop reads between two steps.

    A Python handler runs only between bytecodes, and compiling a large model is minutes in one of them. The
    interpreter's wakeup descriptor is written from the C handler at once, so a thread can end the process while
    there is nothing to save yet (`nothing_to_save`). A second signal ends it wherever it is: the last complete
    checkpoint is intact by construction.

    run_dir: the run whose checkpoints the last words speak of; None while it is not known yet.
    """

    def __init__(self, run_dir: Path | None = None, leave: Callable[[int], Any] = os._exit) -> None:
        self._run_dir = run_dir
        self._leave = leave
        self._requested = False
        self._idle = False
        self._before: dict[signal.Signals, Any] = {}
        self._terminals: list[int] = []

    @property
    def requested(self) -> bool:
        """Whether the run should save and end."""
        return self._requested

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may handle signals; whoever owns it decides
        self._inbox, self._outbox = socket.socketpair()
        self._outbox.setblocking(False)
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started by nohup: the run is to outlive its terminal
            self._before[number] = signal.signal(number, self._noted)
        self._wakeup_before = signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, name="preemption", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._before:
            return
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._outbox.close()  # ends the watcher
        self._watcher.join()
        self._inbox.close()

    @contextmanager
    def nothing_to_save(self) -> Iterator[None]:
        """Within, a signal ends the process at once with exit 75."""
        self._idle = True
        try:
            if self.requested:
                self._end("while starting")
            yield
        finally:
            self._idle = False

    def _watch(self) -> None:
        seen = 0
        while received := self._inbox.recv(1):
            if received[0] not in _SIGNALS:
                continue
            self._leave_terminal(received[0])
            seen += 1
            self._requested = True
            if self._idle:
                self._end("while starting")
            elif seen > 1:
                self._end("by a second signal")

    def _end(self, when: str) -> None:
        there = self._run_dir is not None and has_checkpoint(self._run_dir)
        left = "the last checkpoint is intact" if there else "nothing to save yet"
        with suppress(OSError):  # a reader that is gone must not keep the process
            print(f"preempted {when}; {left}", flush=True)
            sys.stderr.flush()
        self._leave(EXIT_PREEMPTED)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        """Between two bytecodes of the main thread: sooner than the watcher where Python runs, later elsewhere."""
        del frame
        self._leave_terminal(number)
        self._requested = True

    def _leave_terminal(self, number: int) -> None:
        """A closed terminal fails every write: a line of progress would end the run before its save."""
        if number != signal.SIGHUP or not self._terminals:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self._terminals:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
