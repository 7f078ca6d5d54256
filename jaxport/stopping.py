"""Signals that come before a server can act on them: light, since it must be there before anything slow is imported."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def numbers() -> tuple[signal.Signals, ...]:
    """Those that end a server. SIGHUP is not one where nohup, or who else started it, has it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in NUMBERS if not (ignored and number is signal.SIGHUP))


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """In here a signal ends the process at once with 128 + its number.

    Process 1 of a container has no default action: without a handler the signal would be lost, and the server start.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, _leave)) for number in numbers()]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)
