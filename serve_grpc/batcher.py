"""Requests wait here, per model and signature, until the device is free: then whatever waits goes together.

Knows rows, deadlines and priorities; neither a protocol nor the device.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_grpc.buckets import BucketChoice
from serve_grpc.transport import Call

# Rows of one tensor, row-major and without gaps.
Buffer = bytes | memoryview

# A run this short is done on the thread that received it: waking another thread takes about as long.
QUICK_SECONDS = 0.0005
# How much the newest batch of a busy queue says of its pace, and an idle one forgets of it.
NEWEST_SHARE = 0.2
FORGOTTEN_SHARE = 0.05
# Callers that wait for an answer before they ask again come back together, a moment after it: a run that takes long is
# worth this share of its time to have all of them in the next one.
RETURN_SHARE = 0.02
LEAST_RETURN_SECONDS = 0.0005  # shorter than this nobody is back
# A prediction is not kept to the millisecond: this much of --max-latency is promised away.
PROMISED = 0.75


@dataclass(slots=True, eq=False)
class Work:
    """A validated request on its way through one batcher.

    data: the bytes of each input's rows, in the signature's order. outputs: positions of the outputs asked for.
    encode: turns the bytes of their rows into the response. urgent: goes before those that are not.
    expires: when it has waited for too long, in seconds of time.monotonic(). taken and parts: a large request goes in
    several batches, and its results are joined in order. answered: nothing more is to be done for it.
    started: when its first rows left the queue.
    """

    call: Call
    protocol: str
    data: Sequence[Buffer]
    rows: int
    outputs: Sequence[int]
    encode: Callable[[Sequence[Buffer]], bytes]
    urgent: bool = False
    expires: float | None = None
    taken: int = 0
    parts: list[list[Buffer]] | None = None
    answered: bool = False
    started: float = 0.0


@dataclass(slots=True, eq=False)
class Account:
    """Device seconds of the queues that count as one when the device is shared: the lanes of a signature.

    lanes: those queues, ascending by length, where there are several: each can run what waits in those before it.
    """

    spent: float = 0.0
    lanes: "Sequence[Batcher]" = ()


# Rows start to stop of a request. A plain tuple: there is one for every request of every batch.
Slice = tuple[Work, int, int]


@dataclass(slots=True, eq=False)
class Batch:
    """What leaves the queue together: rows to run, and requests that nobody waits for any more.

    taken: when, in seconds of time.monotonic(). rows: of all slices. late: the caller's deadline has passed. expired: they
    waited longer than they or the server allow.
    """

    batcher: "Batcher"
    taken: float
    slices: list[Slice] = field(default_factory=list)
    rows: int = 0
    late: list[Work] = field(default_factory=list)
    expired: list[Work] = field(default_factory=list)
    cancelled: list[Work] = field(default_factory=list)


class Batcher:
    """The queue of one version's signature. Only its scheduler touches it, under the scheduler's lock.

    program: the executor's, opaque here. max_rows: rows that may wait, and as many urgent ones. max_delay: seconds that a batch which is not
    full may wait for more. account: shared with the other lanes of the signature, if it has any.
    """

    def __init__(
        self,
        program: Any,
        choice: BucketChoice,
        max_rows: int,
        max_delay: float = 0.0,
        overlap: bool = False,
        account: Account | None = None,
    ) -> None:
        self.program = program
        self.choice = choice
        self.max_rows = max_rows
        self.max_delay = max_delay
        self.quick = not overlap and not max_delay and max(choice.seconds.values()) <= QUICK_SECONDS
        self.urgent: deque[Work] = deque()
        self.queue: deque[Work] = deque()
        self.rows = self.urgent_rows = 0  # waiting; the urgent ones are among them
        self.running = self.rows_running = 0  # batches on the device or being answered, and their rows
        self.closed = False
        self.account = account or Account()  # for a fair share: see Scheduler
        # Seconds that a row takes in this server, over what it takes alone at the best rate.
        self.slowdown = 1.0
        self.busy_since: float | None = None
        # Rows that are likely to be back, and until when they are waited for.
        self.returning = 0
        self.returned_by = 0.0

    @property
    def waiting(self) -> bool:
        """Whether anything is queued."""
        return bool(self.queue or self.urgent)

    @property
    def oldest(self) -> float:
        """When the request that goes next was received, in seconds of time.monotonic(). Something must be queued."""
        return (self.urgent or self.queue)[0].call.received

    def most(self, max_latency: float) -> int:
        """Rows of the largest request that is taken at all, whatever waits: those that may wait, and can be run within
        `max_latency` seconds by themselves or go in one run.
        """
        return int(min(self.max_rows, max(max_latency / self.choice.row_seconds, self.choice.largest)))

    def admits(self, rows: int, urgent: bool) -> bool:
        """Whether there is room. Those that are not urgent cannot fill the queue for those that are."""
        return (self.urgent_rows if urgent else self.rows) + rows <= self.max_rows

    def seconds_until(self, rows: int) -> float:
        """Seconds in which a request of so many rows is likely to be answered, at the pace of the last batches."""
        return (self.rows + self.rows_running + rows) * self.choice.row_seconds * self.slowdown

    def in_time(self, rows: int, max_latency: float) -> bool:
        """Whether a request of so many rows is likely to be answered within `max_latency` seconds."""
        return self.seconds_until(rows) <= PROMISED * max_latency

    def limit(self, max_latency: float) -> int:
        """Rows up to which any request is taken without a closer look; -1 when there are none."""
        if self.closed:
            return -1
        alone = max_latency / self.choice.row_seconds
        in_time = PROMISED * alone / self.slowdown
        return int(min(self.max_rows, alone, in_time - self.rows_running))

    def put(self, work: Work) -> None:
        """Queues a request."""
        if work.urgent:
            self.urgent.append(work)
            self.urgent_rows += work.rows
        else:
            self.queue.append(work)
        self.rows += work.rows

    def due(self) -> float:
        """When the batch that waits should go, in seconds of time.monotonic()."""
        if self.rows >= self.choice.largest:
            return 0.0
        by = self.returned_by if self.rows < self.returning else 0.0
        if not self.max_delay:
            return by
        oldest = min(queue[0].call.received for queue in (self.urgent, self.queue) if queue)
        return max(by, oldest + self.max_delay)

    def take(self, now: float, most: int) -> Batch:
        """The next batch of up to `most` rows, urgent requests first, else in order of arrival.

        A request goes whole when the largest bucket holds it, else in pieces.
        """
        batch = Batch(self, now)
        room = self.choice.target[min(self.rows, most)]
        if self.urgent:
            room = self._fill_urgent(batch, room)
        if not self.urgent:  # what did not fit goes before those that are not urgent
            self._fill(self.queue, batch, room)
        return batch

    def join(self, batch: Batch, room: int) -> None:
        """Everything that waits here goes with a batch of a longer lane, which has room for it."""
        self._fill_urgent(batch, room)
        self._fill(self.queue, batch, room)
        self.busy_since = None  # the pace of this queue is not seen in its own batches

    def _fill_urgent(self, batch: Batch, room: int) -> int:
        before = self.rows
        room = self._fill(self.urgent, batch, room)
        self.urgent_rows -= before - self.rows
        return room

    def _fill(self, queue: deque[Work], batch: Batch, room: int) -> int:
        """Moves requests from `queue` to the batch until it has `room` rows; the room may grow for a lone large one."""
        now, slices, choice = batch.taken, batch.slices, self.choice
        rows = batch.rows
        while queue and rows < room:
            work = queue[0]
            call = work.call
            left = work.rows - work.taken
            if (
                work.answered  # a piece of it failed
                or call.cancelled
                or (call.deadline is not None and call.deadline <= now)
                or (work.expires is not None and work.expires <= now and not work.taken)
            ):
                self._set_aside(work, batch)
                count = left
            elif left > room - rows and work.rows <= choice.largest:
                if rows:
                    break
                room = choice.covering[left]
                continue
            else:
                count = min(left, room - rows)
                slices.append((work, work.taken, work.taken + count))
                rows += count
            work.taken += count
            self.rows -= count
            if count == left:
                queue.popleft()
        batch.rows = rows
        return room

    @staticmethod
    def _set_aside(work: Work, batch: Batch) -> None:
        if work.answered:
            return
        work.answered = True
        deadline = work.call.deadline
        if work.call.cancelled:
            batch.cancelled.append(work)
        elif deadline is not None and deadline <= batch.taken:
            batch.late.append(work)
        else:
            batch.expired.append(work)

    def done(self, batch: Batch) -> None:
        """A batch is answered: what it took tells how fast the queue moves."""
        self.running -= 1
        self.rows_running -= batch.rows
        now = time.monotonic()
        if batch.rows and self.rows:  # a queue that is behind is what the figure is for
            since = batch.taken if self.busy_since is None else self.busy_since
            best = batch.rows * self.choice.row_seconds
            self.slowdown += NEWEST_SHARE * ((now - since) / best - self.slowdown)
        elif batch.rows:
            self.slowdown += FORGOTTEN_SHARE * (1.0 - self.slowdown)
        self.busy_since = now if self.rows else None
        patience = RETURN_SHARE * (now - batch.taken)
        self.returning = 0 if self.running or patience < LEAST_RETURN_SECONDS else batch.rows
        self.returned_by = now + patience
