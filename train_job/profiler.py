"""A window of steps as a trace of what device and host did in them, for TensorBoard's profile plugin or Perfetto."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

import jax

from train_job.errors import describe_cause
from train_job.runs import PROFILE
from train_job.settings import TrainSettings


class Profiler:
    """Traces the steps that `--profile A:B` asks for, from the one after A to B. Of process 0: the others do the same.

    A trace is a look at the run and no part of it: where it cannot be made, a line says so and the run goes on. However
    the run ends within the window, what was traced until then is written.

    start: steps that are done already. say: takes a line for people. wait: returns when all steps that were started are
    done. seconds: how long the run stood still for it.
    """

    def __init__(
        self, settings: TrainSettings, start: int, say: Callable[[str], None], wait: Callable[[], Any]
    ) -> None:
        self._folder, self._say, self._wait = settings.run_dir / PROFILE, say, wait
        self._window = settings.profile if settings.processes.first else None
        self._began: int | None = (
            None  # steps that were done when the trace began; None: there is none under way
        )
        self._done = start
        self.seconds = 0.0
        if self._window is not None and start >= self._window[1]:
            first, last = self._window
            say(
                f"profile: nothing to trace: steps {first + 1} to {last} are done, the run goes on at {start + 1}"
            )
            self._window = None

    def step(self, done: int) -> AbstractContextManager[Any]:
        """Around the start of the step after `done`: begins the trace where it is the first of the window."""
        if self._window is None:
            return nullcontext()
        if self._began is None and done >= self._window[0]:
            self._begin(done)
        if self._began is None:
            return nullcontext()
        return jax.profiler.StepTraceAnnotation("train", step_num=done + 1)

    def after(self, done: int) -> None:
        """`done` steps were started: ends the trace, when they are done, where that was the last of the window."""
        self._done = done
        if self._began is not None and self._window is not None and done >= self._window[1]:
            self._end(done)

    def _begin(self, done: int) -> None:
        since = time.perf_counter()
        self._wait()
        try:
            jax.profiler.start_trace(self._folder)
            self._began = done
        except Exception as error:  # of another trace, or of what the device's own tracer says
            self._failed(error)
        self.seconds += time.perf_counter() - since

    def _end(self, done: int) -> None:
        since, began = time.perf_counter(), self._began
        self._wait()
        self._began = None
        try:
            jax.profiler.stop_trace()
        except Exception as error:  # a full disk, as the writer of XLA's profiler words it
            self._failed(error)
        else:
            where = os.path.relpath(self._folder)
            self._say(f"profile: steps {(began or 0) + 1} to {done} in {where}")
        self._window = None
        self.seconds += time.perf_counter() - since

    def _failed(self, error: Exception) -> None:
        self._window = None
        self._say(f"profile: not written: {describe_cause(error)}; the run goes on")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._began is not None:
            self._end(self._done)
