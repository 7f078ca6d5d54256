"""The thread that owns the device: takes a batch, runs it, answers it."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from serve_grpc.batcher import Batch, Work
from serve_grpc.ended import Run
from serve_grpc.errors import (
    Cancelled,
    Code,
    DeadlinePassed,
    ExecutionFailed,
    QueueTimeout,
    RequestError,
    status_of,
)
from serve_grpc.metrics import VersionMetrics
from serve_grpc.priorities import this_thread_computes
from serve_grpc.program import Program
from serve_grpc.scheduler import Scheduler
from serve_grpc.transport import Status, respond

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runnable:
    """What the executor knows of a batcher: the program and where its figures go."""

    program: Program
    metrics: VersionMetrics


class Running(NamedTuple):
    """A batch on the device."""

    batch: Batch
    runnable: Runnable
    rows: int
    bucket: int
    started: float
    launched: float
    outputs: Sequence[jax.Array]


class Executor:
    """Runs batches one at a time.

    overlap: the next batch is filled and launched before this one's answers are encoded, so that a device that
    runs on its own never waits for Python. On a CPU the run takes the calling thread and there is nothing to overlap.
    """

    def __init__(self, scheduler: Scheduler, overlap: bool) -> None:
        self._scheduler = scheduler
        self._overlap = overlap
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)

    def start(self) -> None:
        """Begins to take batches."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Waits for the end, which comes after `Scheduler.stop` and the last batch."""
        self._thread.join(timeout)

    def run_here(self) -> None:
        """Runs, on the calling thread, what the scheduler gave it to run (see `Scheduler.submit`)."""
        while (batch := self._scheduler.take_mine()) is not None:
            running = self._launch(batch)
            if running is not None:
                self._finish(running)

    def _run(self) -> None:
        if not self._overlap:  # a run takes this thread
            this_thread_computes()
        running: Running | None = None
        while True:
            batch = self._scheduler.take(wait=running is None)
            if batch is None and running is None:
                return
            following = None if batch is None else self._launch(batch)
            if running is not None:
                self._finish(running)
            running = following
            if running is not None and not self._overlap:
                self._finish(running)
                running = None

    def _launch(self, batch: Batch) -> Running | None:
        runnable: Runnable = batch.batcher.program
        if batch.late or batch.expired or batch.cancelled:
            self._shed(batch, runnable)
        if not batch.slices:
            self._scheduler.done(batch)
            return None
        rows = batch.rows
        bucket = batch.batcher.choice.covering[rows]
        try:
            started = time.monotonic()
            arrays = runnable.program.assemble(batch.slices, bucket)
            launched = time.monotonic()
            outputs = runnable.program.launch(bucket, arrays)
        except Exception as error:  # whatever a program raises, the server and its other models live on
            self._fail(batch, runnable, error)
            return None
        if runnable.metrics.listened:
            for work, start, _ in batch.slices:
                work.started = work.started if start else started
        waited = [started - work.call.received for work, start, _ in batch.slices if not start]
        runnable.metrics.launched(waited, launched - started)
        return Running(batch, runnable, rows, bucket, started, launched, outputs)

    def _finish(self, running: Running) -> None:
        batch, runnable, rows, bucket, started, launched, outputs = running
        try:
            arrays = runnable.program.fetch(outputs)
            fetched = time.monotonic()
            works, answers = runnable.program.answers(batch.slices, arrays)
        except Exception as error:  # the device reports a failed run here
            self._fail(batch, runnable, error)
            return
        respond(answers)
        answered = time.monotonic()
        signature = runnable.program.rules.signature
        run = Run(signature, rows, bucket, started, launched, fetched, answered)
        runnable.metrics.ended(works, signature, Code.OK, answered, run)
        self._scheduler.done(batch)
        runnable.metrics.ran(run)

    def _shed(self, batch: Batch, runnable: Runnable) -> None:
        metrics = runnable.metrics
        for works, error, counter in (
            (
                batch.late,
                DeadlinePassed("the deadline passed while the request waited in the queue"),
                metrics.late,
            ),
            (
                batch.expired,
                QueueTimeout(
                    "the request waited in the queue for longer than its timeout or --max-latency allows"
                ),
                metrics.expired,
            ),
            (
                batch.cancelled,
                Cancelled("the caller cancelled while the request waited in the queue"),
                metrics.cancelled,
            ),
        ):
            if works:
                counter.inc(len(works))
                self._refuse(works, runnable, error)

    def _fail(self, batch: Batch, runnable: Runnable, error: Exception) -> None:
        log.error("a batch failed", exc_info=error)
        works = [work for work, _, _ in batch.slices if not work.answered]
        reason = str(error).partition("\n")[0][:300]
        self._refuse(works, runnable, ExecutionFailed(f"the run failed: {type(error).__name__}: {reason}"))
        self._scheduler.done(batch)

    def _refuse(self, works: Sequence[Work], runnable: Runnable, error: RequestError) -> None:
        code, reason = status_of(error), str(error)
        for work in works:
            work.answered = True
        signature, now = runnable.program.rules.signature, time.monotonic()
        runnable.metrics.ended(works, signature, code, now, reason=reason)
        respond([(work.call, Status(code, reason)) for work in works])
