"""Calls that come one by one, handed over many at a time.

grpc.aio accepts one call per turn of its loop, so an executor that takes what waits would find a single call each
time, and the interpreter would go from thread to thread for each. While the loop has idle time that costs nothing
that is missed: a call goes on at once. A loop that is always busy is holding calls back unseen; then a call waits
for others, for as many as keep the loop just short of idle.
"""

import asyncio
import selectors
import time
from collections.abc import Callable

from serve_grpc.transport import Call

# Accepting a call takes grpc.aio about this long, so this is when the next one can be here.
SECONDS_PER_CALL = 0.0005
MOST_SECONDS = 0.01
MOST_CALLS = 64
# A loop that sleeps for less than this share of the time is busy.
IDLE_SHARE = 0.25


class Gather:
    """Lives on one event loop and is called on its thread only."""

    def __init__(self, hand_over: Callable[[list[Call]], None]) -> None:
        self._selector = _TimedSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self._put = hand_over
        self._calls: list[Call] = []
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = 1
        self._since = time.monotonic()

    def accepted(self, call: Call) -> None:
        """A call came; it is handed over now or within MOST_SECONDS."""
        self._calls.append(call)
        if len(self._calls) >= self._wanted:
            self._hand_over()
        elif self._timer is None:
            patience = min(self._wanted * SECONDS_PER_CALL, MOST_SECONDS)
            self._timer = self.loop.call_later(patience, self._hand_over)

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls = self._calls, []
        self._put(calls)
        now = time.monotonic()
        if self._selector.slept < IDLE_SHARE * (now - self._since):
            self._wanted = min(2 * self._wanted, MOST_CALLS)
        else:
            self._wanted = max(1, self._wanted // 2)
        self._since, self._selector.slept = now, 0.0


class _TimedSelector(selectors.DefaultSelector):
    """Adds up the seconds that the loop had nothing to do."""

    slept = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        start = time.monotonic()
        events = super().select(timeout)
        self.slept += time.monotonic() - start
        return events
