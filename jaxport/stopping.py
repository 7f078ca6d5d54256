"""Signals for those who have not taken them over, or never do: light, since it is there before anything slow is imported.

Process 1 of a container has no default action: without a handler a signal would be lost, and the kubelet wait out its
whole grace period.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def numbers() -> tuple[signal.Signals, ...]:
    """Those that end a server. SIGHUP is not one where nohup, or who else started it, has it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in NUMBERS if not (ignored and number is signal.SIGHUP))


@contextmanager
def leaving_on_signals(code: int | None = None) -> Iterator[None]:
    """In here a signal ends the process at once with `code`, or else with 128 + its number: nothing is begun yet."""

    def leave(number: int, _: FrameType | None) -> None:
        os._exit(128 + number if code is None else code)

    with _handled(dict.fromkeys(numbers(), leave)):
        yield


def end(code: int) -> NoReturn:
    """Ends the process with a code that no signal changes any more, though the interpreter takes its time to stop."""
    for number in numbers():
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


class Unwound(SystemExit):
    """A SIGTERM on its way out, to be told from a `sys.exit` of whoever's code it came upon."""


@contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """In here SIGTERM raises Unwound(143), a SystemExit, so that what was half written is tidied up, as after Ctrl-C."""

    def unwind(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one does not break the tidying off; SIGKILL will
        raise Unwound(128 + number)

    with _handled({signal.SIGTERM: unwind}):
        yield


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number, handler in handlers.items()]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
