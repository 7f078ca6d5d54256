"""The training loop: step, now and then look, now and then save, until done or told to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from train_job.checkpoints import Checkpoints
from train_job.errors import CheckFailed, StorageFailed
from train_job.exporter import Exporter
from train_job.mesh import Layout
from train_job.metrics import MetricsLog
from train_job.optimizer import schedule, updates_done
from train_job.outcomes import Outcomes
from train_job.preemption import Preemption
from train_job.prefetch import Prefetch
from train_job.presets import Dataset
from train_job.profiler import Profiler
from train_job.progress import Reporter, interval_line
from train_job.rows import throughput
from train_job.runs import saved_steps
from train_job.settings import TrainSettings
from train_job.state import TrainState
from train_job.steps import Programs
from train_job.usage import Usage

# Steps the host may run ahead of the device: enough to hide its own work, few enough that a signal is
# answered within this many steps.
_LOOKAHEAD = 2


@dataclass(frozen=True)
class Loop:
    """One start of a run, from a state to the last planned step."""

    settings: TrainSettings
    data: Dataset
    layout: Layout
    evaluation: Mapping[str, Any]  # part -> its fixed batches, on the device
    programs: Programs
    checkpoints: Checkpoints
    log: MetricsLog | None  # of process 0
    reporter: Reporter
    preemption: Preemption
    usage: Usage | None  # of process 0
    exporter: Exporter | None = None  # of process 0, with --metrics-port

    def run(self, state: TrainState, done: int) -> tuple[TrainState, int]:
        """Steps from `done`, saving as planned; the last save is complete when this returns.

        Returns the state and the steps done: fewer than planned when a signal asked to stop. What is saved was heard
        to be finite before, up to its last step.

        Raises:
            StorageFailed: a save or a metrics row could not be written. CheckFailed: a loss or a gradient is no number.
        """
        hyper, upkeep = self.settings.hyper, self.settings.upkeep
        saved, votes = done, self.layout.votes(self.preemption)
        outcomes = Outcomes(self.settings, votes, self.reporter.interval, self._last_saved)
        make = partial(self.layout.batch, self.data, hyper.seed)
        profile = Profiler(self.settings, done, self.reporter.interval, outcomes.wait)
        with Prefetch(make, done, hyper.steps, lambda: votes.stop) as batches, profile:
            pace = _Pace(done, batches, profile)
            while done < hyper.steps and not votes.stop:
                with profile.step(done):
                    if (batch := batches.take(done)) is None:
                        break
                    state, outcome = self.programs.step(state, batch, *votes.cast())
                done += 1
                outcomes.add(done, outcome)
                profile.after(done)
                outcomes.settle(left=_LOOKAHEAD)
                self.checkpoints.raise_if_failed()
                self.reporter.advance(done)
                if self.exporter is not None:
                    self.exporter.step(done)
                last = done == hyper.steps
                save = last or done % upkeep.checkpoint_every == 0
                if save or done % upkeep.eval_every == 0:
                    outcomes.settle()
                    metrics = self._look(state, done, pace.figures(done), outcomes.means())
                    if save:
                        self.checkpoints.save(done, state.as_items(), metrics)
                        saved = done
                    pace = _Pace(done, batches, profile)
        outcomes.settle()
        if saved != done:  # stopped by a signal: no time for an evaluation
            self.checkpoints.save(done, state.as_items(), {})
        self.checkpoints.wait()
        return state, done

    def _look(
        self, state: TrainState, done: int, pace: Mapping[str, float], means: Mapping[str, float]
    ) -> dict[str, float]:
        """Evaluates both parts, records the row and returns the metrics."""
        task, hyper = self.settings.preset.task, self.settings.hyper
        evaluated = {
            part: self.programs.evaluate(state.weights, batches) for part, batches in self.evaluation.items()
        }
        found = {
            f"{part}_{name}": float(value)
            for part, values in jax.device_get(evaluated).items()
            for name, value in values.items()
        }
        metrics = task.report(found)
        _require_finite(metrics, done)
        updates, step_seconds = int(updates_done(state.optimizer)), pace["step_seconds"]
        row = {
            "step": done,
            "time": time.time(),
            **metrics,
            **means,
            throughput(task.unit): task.positions(hyper.batch_size) / step_seconds,
            **pace,
            "lr": float(np.asarray(schedule(hyper)(max(updates - 1, 0)))),
            "skipped_steps": done - updates,
            **self.checkpoints.seconds,
            **(self.usage.figures(done, step_seconds) if self.usage is not None else {}),
        }
        if self.log is not None:
            self.log.append(row)
        if self.exporter is not None:
            self.exporter.measured(row)
        self.reporter.interval(interval_line(row, hyper.steps, task.unit))
        return metrics

    def _last_saved(self) -> int | None:
        with suppress(StorageFailed):  # of a save that is under way as the run ends by something else
            self.checkpoints.wait()
        return max(saved_steps(self.settings.run_dir), default=None)


class _Pace:
    """Seconds per step since an interval began; evaluation, saving and writing a profile are outside."""

    def __init__(self, done: int, batches: Prefetch, profile: Profiler) -> None:
        self._done, self._batches, self._profile = done, batches, profile
        self._since, self._waited = time.perf_counter() - profile.seconds, batches.waited

    def figures(self, done: int) -> dict[str, float]:
        """Of an interval that ends here. input_wait_seconds: those of a step that the loop had no batch for it."""
        steps = done - self._done
        return {
            "step_seconds": max(time.perf_counter() - self._profile.seconds - self._since, 1e-9) / steps,
            "input_wait_seconds": (self._batches.waited - self._waited) / steps,
        }


def _require_finite(metrics: Mapping[str, float], done: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise CheckFailed(
                f"{name} is {value} at step {done}, needs a finite number: look at the data that it is evaluated "
                "on, as every update so far came of a finite loss; or training diverged: start over under another --run with a "
                "smaller --set learning_rate (nothing of this step was saved)"
            )
