"""Batches made ahead of the loop, on a thread of their own, so that the device does not wait for its next one.

What is made ahead is lost when the run ends, and costs nothing: a batch is a pure function of (seed, step), so the
position in the data is the step that the loop is at, and not how far the thread is.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import jax

type Batch = Mapping[str, Any]

# Batches that lie on the devices before they are asked for; the thread holds one more. Enough for one that took twice
# the time of the others; more would be memory that the model could have.
_AHEAD = 2
_ASKED_EVERY_S = 0.2  # while it waits, whether the run is to stop
_LEFT_ALONE_S = 5.0  # how long the end of a run waits for a read of a volume that does not answer


class Prefetch:
    """The batches of steps `first` to `last` - 1, in order. Within `with`, the thread makes them.

    make: step -> the batch on the devices. Called on the thread alone, without collectives: other processes may be
    further ahead, or behind. stopping: whether the run is to end without the next batch.
    """

    def __init__(
        self,
        make: Callable[[int], Batch],
        first: int,
        last: int,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._make, self._steps, self._stopping = make, range(first, last), stopping
        self._made: queue.Queue[tuple[int, Batch | BaseException]] = queue.Queue(_AHEAD)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self.waited = 0.0  # seconds that `take` stood still, in all

    def take(self, step: int) -> Batch | None:
        """The batch of `step`, which is the next in order. Raises what its making raised.

        None where the run is to stop and the batch is not there: a volume that does not answer keeps no process alone
        from saving. One with peers hears of a signal by the votes of a step (`train_job.mesh.PeerVotes`), which are counted on
        the thread that waits here: it waits for its batch, however long that takes.
        """
        began = time.perf_counter()
        while True:
            try:
                made, batch = self._made.get(timeout=_ASKED_EVERY_S)
                break
            except queue.Empty:
                if self._stopping():
                    return None
        self.waited += time.perf_counter() - began
        if isinstance(batch, BaseException):
            raise batch
        if made != step:
            raise RuntimeError(f"step {step} was to be trained on the batch of step {made}")
        return batch

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        while self._thread.is_alive() and not self._made.empty():
            self._made.get_nowait()  # makes room for the one that the thread holds, with which it ends
        self._thread.join(_LEFT_ALONE_S)

    def _run(self) -> None:
        for step in self._steps:
            try:
                made = jax.block_until_ready(self._make(step))
            except (
                BaseException
            ) as error:  # whatever it was, it ends the run where a batch would have gone on
                made = error
            self._made.put((step, made))
            if self._ended.is_set() or isinstance(made, BaseException):
                return
