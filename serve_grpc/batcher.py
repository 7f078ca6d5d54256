"""Requests wait here, per model and signature, until the executor is free: then whatever waits goes together.

There is no timer. An idle executor takes a lone request at once; a busy one lets a batch grow. Knows rows and
deadlines; neither a protocol nor the device.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from serve_grpc.buckets import BucketChoice
from serve_grpc.transport import Call


@dataclass(slots=True, eq=False)
class Work:
    """A validated request on its way through one batcher.

    inputs: arrays [rows, ...] in the signature's order. outputs: positions of the outputs asked for.
    encode: turns those arrays into the response's bytes. taken and parts: a large request goes in several batches,
    and its results are joined in order. started: seconds of time.monotonic() when its first rows left the queue.
    answered: nothing more is to be done for it.
    """

    call: Call
    protocol: str
    inputs: Sequence[np.ndarray]
    rows: int
    outputs: Sequence[int]
    encode: Callable[[Sequence[np.ndarray]], bytes]
    taken: int = 0
    parts: list[list[np.ndarray]] = field(default_factory=list)
    started: float = 0.0
    answered: bool = False


class Slice(NamedTuple):
    """Rows start to stop of a request's inputs."""

    work: Work
    start: int
    stop: int


class Batch(NamedTuple):
    """What leaves the queue together: rows to run, and requests that nobody waits for any more."""

    batcher: "Batcher"
    slices: list[Slice]
    expired: list[Work]
    cancelled: list[Work]


class Batcher:
    """The queue of one version's signature. Only its scheduler touches it, under the scheduler's lock.

    program: the executor's, opaque here. max_rows: rows that may wait.
    """

    def __init__(self, program: Any, choice: BucketChoice, max_rows: int) -> None:
        self.program = program
        self.choice = choice
        self.max_rows = max_rows
        self.queue: deque[Work] = deque()
        self.rows = 0  # waiting
        self.running = 0  # batches on the device or being answered
        self.closed = False

    def admits(self, rows: int) -> bool:
        """A queue that is empty takes any request: its size is limited by --max-message-bytes, not here."""
        return not self.rows or self.rows + rows <= self.max_rows

    def take(self, now: float) -> Batch:
        """The next batch in order of arrival; requests nobody waits for any more are set aside.

        A request goes whole when the largest bucket holds it, else in pieces.
        """
        batch = Batch(self, [], [], [])
        choice = self.choice
        rows, room = 0, choice.target[min(self.rows, choice.largest)]
        while self.queue and rows < room:
            work = self.queue[0]
            left = work.rows - work.taken
            if self._given_up(work, now, batch):
                count = left
            elif work.rows <= choice.largest and left > room - rows:
                if rows:
                    break
                room = choice.covering[left]
                continue
            else:
                count = min(left, room - rows)
                batch.slices.append(Slice(work, work.taken, work.taken + count))
                rows += count
            work.taken += count
            self.rows -= count
            if count == left:
                self.queue.popleft()
        return batch

    @staticmethod
    def _given_up(work: Work, now: float, batch: Batch) -> bool:
        if work.answered:  # a piece of it failed
            return True
        if work.call.cancelled:
            batch.cancelled.append(work)
        elif work.call.deadline is not None and work.call.deadline <= now:
            batch.expired.append(work)
        else:
            return False
        work.answered = True
        return True


class Refusal(Enum):
    """Why a request was not queued."""

    FULL = "full"
    CLOSED = "closed"


class Scheduler:
    """Shares one device between the batchers that have work, in turn: a slow model delays another by one batch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: deque[Batcher] = deque()
        self._stopped = False

    def submit(self, works: Sequence[tuple[Batcher, Work]]) -> list[tuple[Batcher, Work, Refusal]]:
        """Queues requests, one hand-over for all; returns those that were refused."""
        refused = []
        with self._changed:
            for batcher, work in works:
                if batcher.closed:
                    refused.append((batcher, work, Refusal.CLOSED))
                elif not batcher.admits(work.rows):
                    refused.append((batcher, work, Refusal.FULL))
                else:
                    if not batcher.queue:
                        self._ready.append(batcher)
                    batcher.queue.append(work)
                    batcher.rows += work.rows
            self._changed.notify_all()
        return refused

    def take(self, wait: bool = True) -> Batch | None:
        """The next batch, which must be given back with `done`; None once stopped, or when none waits."""
        with self._changed:
            while not self._ready:
                if self._stopped or not wait:
                    return None
                self._changed.wait()
            batcher = self._ready.popleft()
            batch = batcher.take(time.monotonic())
            if batcher.queue:
                self._ready.append(batcher)
            batcher.running += 1
            return batch

    def done(self, batch: Batch) -> None:
        """Every request of the batch is answered, or waits for its next piece."""
        with self._changed:
            batch.batcher.running -= 1
            if batch.batcher.closed:
                self._changed.notify_all()

    def close(self, batcher: Batcher) -> None:
        """Refuses new requests to a batcher and waits until those it accepted are answered."""
        with self._changed:
            batcher.closed = True
            self._changed.wait_for(lambda: self._stopped or not (batcher.queue or batcher.running))

    def stop(self) -> None:
        """Ends the executor once nothing waits any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
