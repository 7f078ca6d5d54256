"""Steps of jaxport's own training loop and of a bare one, in turns in one process.

The bare loop is what a person writes first: value_and_grad of the same model and loss, the same optimizer, under one
jit that donates its state. Turns are short, every ratio is of one to the mean of the two of the other loop beside it, so
that a machine that drifts slows both, and the same small evaluation comes before each: neither begins warmer.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train_job.checkpoints import Checkpoints
from train_job.loop import Loop
from train_job.mesh import lay_out
from train_job.metrics import MetricsLog
from train_job.optimizer import optimizer
from train_job.preemption import Preemption
from train_job.presets import Dataset
from train_job.processes import ALONE
from train_job.progress import Quiet
from train_job.settings import TrainSettings
from train_job.state import abstract_state, fresh_state
from train_job.steps import Programs, compile_programs
from train_job.weights import initialise, skeleton

WAIT = "input_wait_seconds"  # of a row of metrics.jsonl: how long a step waited for its batch


@dataclass
class Turns:
    """Seconds of each turn, all of the same number of steps. A turn of ours follows the bare one at its place, and comes
    before the next one; there is one more of these.

    saving: whether a checkpoint was saved in the background of ours. waited: how long ours stood still for batches.
    *_losses: means over the steps of a turn; that they are the same says that both did the same work. outlasted: saves
    that were not done when their turn was, so that their cost is not all in it.
    """

    steps: int
    bare: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    saving: list[bool] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    bare_losses: list[float] = field(default_factory=list)
    our_losses: list[float] = field(default_factory=list)
    outlasted: int = 0

    def ratios(self, saving: bool) -> list[float]:
        """ours / bare, of the turns with a save in their background, or of those without."""
        turns = zip(self.beside, self.ours, self.saving, strict=True)
        return [ours / bare for bare, ours, saved in turns if saved is saving]

    @property
    def beside(self) -> list[float]:
        """The mean seconds of the two bare turns beside each of ours."""
        return [(before + after) / 2 for before, after in pairwise(self.bare)]

    @property
    def step_seconds(self) -> float:
        """Of the bare loop."""
        return statistics.median(self.bare) / self.steps

    @property
    def save_seconds(self) -> list[float]:
        """What each turn with a save took longer than the bare ones beside it, beyond what turns without do."""
        usual = statistics.median(self.ratios(saving=False))
        turns = zip(self.beside, self.ours, self.saving, strict=True)
        return [ours - usual * bare for bare, ours, saved in turns if saved]

    @property
    def disagreement(self) -> float:
        """The largest relative difference of the two loops' losses."""
        bare, ours = np.array(self.bare_losses[:-1]), np.array(self.our_losses)
        return float(np.max(np.abs(ours / bare - 1)))

    @property
    def input_wait(self) -> float:
        """The share of our turns that went into waiting for a batch."""
        return sum(self.waited) / sum(self.ours)


class BareLoop:
    """The loop to be compared with, from the same fresh weights and through the same batches."""

    def __init__(self, settings: TrainSettings, data: Dataset) -> None:
        preset, hyper = settings.preset, settings.hyper
        structure, transform = skeleton(preset.model), optimizer(hyper, preset.optimizer)
        self._data, self._hyper, self._done = data, hyper, 0
        self._weights = initialise(preset.model, hyper.seed)
        self._moments = jax.jit(transform.init)(self._weights)

        def loss_of(weights: Any, batch: Mapping[str, Any]) -> jax.Array:
            module = structure.merge(weights)
            module.train()
            return preset.task.loss(module, batch, jax.random.key(0))[0]

        def step(weights: Any, moments: Any, batch: Mapping[str, Any]) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
            updates, moments = transform.update(gradients, moments, weights)
            return optax.apply_updates(weights, updates), moments, loss

        batch = data.batch(hyper.seed, 0, hyper.batch_size)
        self._step = jax.jit(step, donate_argnums=(0, 1)).lower(self._weights, self._moments, batch).compile()

    def run(self, steps: int) -> tuple[float, float]:
        """(seconds until the device has done them, the mean of their losses)."""
        start, losses = time.perf_counter(), []
        for _ in range(steps):
            batch = self._data.batch(self._hyper.seed, self._done, self._hyper.batch_size)
            self._weights, self._moments, loss = self._step(self._weights, self._moments, batch)
            losses.append(loss)
            self._done += 1
        jax.block_until_ready((self._weights, self._moments))
        return time.perf_counter() - start, float(np.mean(jax.device_get(losses)))


class Paced:
    """Data whose batches are not made ahead during a turn of the bare loop, which would be time that no run has."""

    def __init__(self, data: Dataset) -> None:
        self._data, self._ours = data, threading.Event()
        self._ours.set()

    def batch(self, *arguments: Any) -> dict[str, np.ndarray]:
        """As the data's own."""
        self._ours.wait()
        return self._data.batch(*arguments)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the bare loop has its turn."""
        self._ours.clear()
        try:
            yield
        finally:
            self._ours.set()


class Alternating(MetricsLog):
    """The records of a run that writes one row a turn: between two turns of it, a turn of the bare loop.

    The run's first turn, and one of the bare loop before it, warm both up and are not counted.
    """

    def __init__(
        self,
        settings: TrainSettings,
        data: Paced,
        bare: BareLoop,
        turns: Turns,
        checkpoints: Checkpoints,
        between: Callable[[], object],
    ) -> None:
        super().__init__(settings.run_dir, 0)
        self._settings, self._data, self._bare, self._turns = settings, data, bare, turns
        self._checkpoints, self._between = checkpoints, between
        self._began = self._ended = 0.0
        bare.run(turns.steps)

    def ended(self) -> None:
        """The run has heard of all steps of its turn, and begins to evaluate."""
        self._ended = self._ended or time.perf_counter()

    def append(self, row: Mapping[str, Any]) -> None:
        """Takes the row of our turn, and has the bare loop make its own."""
        super().append(row)
        if self._began:
            self._turns.ours.append(self._ended - self._began)
            self._turns.our_losses.append(row["batch_loss"])
            self._turns.waited.append(row[WAIT] * self._turns.steps)
        if self._checkpoints.under_way:
            self._turns.outlasted += 1
        self._checkpoints.wait()  # what is left of it would slow the bare loop
        with self._data.paused():
            seconds, loss = self._bare.run(self._turns.steps)
            self._between()
        self._turns.bare.append(seconds)
        self._turns.bare_losses.append(loss)
        if row["step"] < self._settings.hyper.steps:
            # What is saved at this step, once this returns, is written in the background of the turn to come.
            self._turns.saving.append(row["step"] % self._settings.upkeep.checkpoint_every == 0)
        self._began, self._ended = time.perf_counter(), 0.0


def alternate(settings: TrainSettings, turns: int) -> Turns:
    """Trains by both loops, `turns` turns each after the first, and a save in every `checkpoint_every` steps.

    settings: `eval_every` are the steps of a turn. Writes into the run's folder, which must not be there.
    """
    preset, steps = settings.preset, settings.upkeep.eval_every
    hyper = dataclasses.replace(settings.hyper, steps=(turns + 1) * steps)
    settings = dataclasses.replace(settings, hyper=hyper)
    settings.run_dir.mkdir(parents=True)
    data, found = preset.task.load(settings.data), Turns(steps)
    layout = lay_out({}, hyper.batch_size, ALONE)
    transform = optimizer(hyper, preset.optimizer)
    state = fresh_state(preset.model, transform, hyper.seed, abstract_state(preset.model, transform, layout))
    # One small batch of each part: what an evaluation costs is not asked here.
    evaluation = {
        part: layout.evaluation({name: values[:1, :2] for name, values in data.evaluation(word).items()})
        for part, word in (("train", "train"), ("val", "validation"))
    }
    batch = layout.batch(data, hyper.seed, 0)
    programs = compile_programs(preset, hyper, settings.upkeep, layout, state, batch, evaluation["val"])
    paced: Any = Paced(data)
    bare, copied = BareLoop(settings, data), jax.tree.map(jnp.copy, state.weights)

    def between() -> None:
        """What the loop does between two turns, for the bare one as well."""
        jax.device_get([programs.evaluate(copied, batches) for batches in evaluation.values()])

    with (
        Preemption() as preemption,
        Checkpoints(settings.run_dir, settings.upkeep) as checkpoints,
        Alternating(settings, paced, bare, found, checkpoints, between) as log,
    ):

        def evaluate(weights: Any, batches: Any) -> Any:
            log.ended()
            return programs.evaluate(weights, batches)

        watched = Programs(programs.step, evaluate)
        Loop(
            settings, paced, layout, evaluation, watched, checkpoints, log, Quiet(), preemption, usage=None
        ).run(state, 0)
    return found
