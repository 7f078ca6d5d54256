"""Shares one device between the queues that have work.

There is no timer unless one is asked for: an idle device takes a lone request at once; a busy one lets a batch grow.
"""

import threading
import time
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from serve_grpc.batcher import Account, Batch, Batcher, Work
from serve_grpc.together import taken_together, worth_joining

# A queue that had work within so many seconds keeps the batches of slower ones short.
RECENT_SECONDS = 1.0
# Batches that a receiving thread runs before it receives again.
MOST_MINE = 8


class Refusal(Enum):
    """Why a request was not queued. large: it has more rows than any request may have. full: --max-queue. slow: it
    would be answered later than --max-latency.
    """

    LARGE = "large"
    FULL = "full"
    SLOW = "slow"
    CLOSED = "closed"


class Submitted(NamedTuple):
    """refused: requests that were not queued. mine: the caller runs what waits, with `take_mine`."""

    refused: list[tuple[Batcher, Work, Refusal]]
    mine: bool


class Scheduler:
    """Every queue gets the device for an equal share of its time, urgent requests first.

    The queue that has had least of the device's time goes next. One that was idle does not save its share up. A batch
    is never longer than it pays while another queue has work, so that a slow model delays a fast one by one short batch.
    The lanes of a signature count as one queue: they share an account, and of them goes the one that has waited longest,
    with others where one run of a longer lane costs less than theirs.

    max_latency: seconds; a request that would be answered later is refused. infinity: no limit.
    """

    def __init__(self, max_latency: float = float("inf")) -> None:
        self._max_latency = max_latency
        self._changed = threading.Condition()
        self._ready: list[Batcher] = []
        self._seen: dict[Account, float] = {}  # when a queue last had work
        self._clock = 0.0  # what the queue that went last had spent
        self._out = 0  # batches taken and not done
        self._held = False  # by a thread that runs what it submitted itself
        self._mine = 0  # batches that it was given in a row
        self._stopped = False

    def submit(self, works: Sequence[tuple[Batcher, Work]], run_here: bool = False) -> Submitted:
        """Queues requests, one hand-over for all. run_here: the caller would run short batches itself."""
        refused = []
        before, limit = None, 0
        with self._changed:
            for batcher, work in works:
                if batcher is not before:
                    before, limit = batcher, batcher.limit(self._max_latency)
                if batcher.rows + work.rows > limit:
                    refusal = self._refusal(batcher, work)
                    if refusal is not None:
                        refused.append((batcher, work, refusal))
                        continue
                if not (batcher.queue or batcher.urgent):
                    batcher.account.spent = max(batcher.account.spent, self._clock)
                    self._ready.append(batcher)
                batcher.put(work)
            mine = run_here and not (self._out or self._held) and self._quick()
            if mine:
                self._held = True
            elif self._ready:
                self._changed.notify_all()
        return Submitted(refused, mine)

    def take(self, wait: bool = True) -> Batch | None:
        """The next batch, which must be given back with `done`; None once stopped, or when none waits."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = None
                if self._ready and not self._held:
                    due = min(batcher.due() for batcher in self._ready)
                    if due <= now or self._stopped:
                        return self._next(now)
                if not wait or (self._stopped and not self._ready):
                    return None
                self._changed.wait(None if due is None else due - now)

    def take_mine(self) -> Batch | None:
        """The next batch for the thread that was told to run it; None ends that, and others may take again."""
        with self._changed:
            if self._mine < MOST_MINE and self._quick():
                self._mine += 1
                return self._next(time.monotonic())
            self._held, self._mine = False, 0
            if self._ready or self._stopped:
                self._changed.notify_all()
            return None

    def done(self, batch: Batch) -> None:
        """Every request of the batch is answered, or waits for its next piece."""
        with self._changed:
            self._out -= 1
            batch.batcher.done(batch)
            if batch.batcher.closed:
                self._changed.notify_all()

    def close(self, batcher: Batcher) -> None:
        """Refuses new requests to a batcher and waits until those it accepted are answered."""
        with self._changed:
            batcher.closed = True
            self._changed.wait_for(lambda: self._stopped or not (batcher.waiting or batcher.running))
            self._seen.pop(batcher.account, None)

    def most_rows(self, batcher: Batcher) -> int:
        """Rows of the largest request that is ever queued there."""
        return batcher.most(self._max_latency)

    def stop(self) -> None:
        """Ends the executor once nothing waits any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _refusal(self, batcher: Batcher, work: Work) -> Refusal | None:
        if batcher.closed:
            return Refusal.CLOSED
        if work.rows > batcher.most(self._max_latency):
            return Refusal.LARGE
        if not batcher.admits(work.rows, work.urgent):
            return Refusal.FULL
        if batcher.rows and not (work.urgent or batcher.in_time(work.rows, self._max_latency)):
            return Refusal.SLOW
        return None

    def _quick(self) -> bool:
        return bool(self._ready) and all(batcher.quick for batcher in self._ready)

    def _next(self, now: float) -> Batch:
        ready = self._ready
        if len(ready) == 1:
            batcher = ready[0]
        else:
            batcher = min(
                (b for b in ready if b.due() <= now or self._stopped),
                key=lambda b: (not b.urgent, b.account.spent, b.oldest),
                default=ready[0],
            )
        account = batcher.account
        self._seen[account] = now
        brisk = self._others(account, now)
        joined = worth_joining(account.lanes, batcher, brisk) if account.lanes and len(ready) > 1 else ()
        if joined:
            batcher, batch = joined[-1], taken_together(joined, now)
            choice = batcher.choice
        else:
            choice = batcher.choice
            batch = batcher.take(now, choice.brisk if brisk else choice.largest)
        self._clock = account.spent
        if batch.rows:
            account.spent += choice.seconds[choice.covering[batch.rows]]
        for lane in joined or (batcher,):
            if not lane.waiting:
                ready.remove(lane)
        batcher.running += 1
        batcher.rows_running += batch.rows
        self._out += 1
        return batch

    def _others(self, account: Account, now: float) -> bool:
        """Whether a queue of another account has work, or had some a moment ago."""
        if len(self._seen) == 1:
            return False
        return any(other is not account and now - at < RECENT_SECONDS for other, at in self._seen.items())
