"""The two compiled programs of a run: one training step, one evaluation.

Both are compiled before the first step. A compiled program cannot compile again: an argument of another shape
or dtype raises instead, so a recompilation in the middle of a run is impossible rather than unlikely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import optax

from train_job.mesh import Layout
from train_job.optimizer import optimizer
from train_job.presets import Preset, Task
from train_job.settings import Hyperparameters
from train_job.state import TrainState, shardings
from train_job.weights import Skeleton, Weights, flatten, skeleton

type Batch = Mapping[str, Any]
type Scalars = dict[str, jax.Array]


@dataclass(frozen=True)
class Programs:
    """step: (state, batch) -> (next state, loss), consuming the state. evaluate: (weights, batches) -> means.

    With peers the step takes their votes as well, int32 [devices], and gives (loss, sum of the votes) for the loss.
    """

    step: Callable[..., tuple[TrainState, Any]]
    evaluate: Callable[[Weights, Batch], Scalars]


def compile_programs(
    preset: Preset,
    hyper: Hyperparameters,
    layout: Layout,
    state: TrainState,
    batch: Batch,
    evaluation: Batch,
) -> Programs:
    """Compiles both programs for the shapes of `state`, `batch` [rows, ...], `evaluation` [batches, rows, ...]."""
    evaluate = jax.jit(mean_metrics(preset.task, skeleton(preset.model)), out_shardings=layout.copies)
    ballots = () if layout.processes.alone else (layout.vote(False),)
    return Programs(
        step=jit_step(preset, hyper, layout, state).lower(state, batch, *ballots).compile(),
        evaluate=evaluate.lower(state.weights, evaluation).compile(),
    )


def jit_step(preset: Preset, hyper: Hyperparameters, layout: Layout, state: TrainState) -> Any:
    """The training step under jit, which leaves every leaf where `state`, or its abstract form, has it."""
    step = _train_step(preset.task, skeleton(preset.model), optimizer(hyper))
    placed = shardings(state)
    given = (placed, layout.rows)
    if not layout.processes.alone:
        step, given = _with_votes(step), (*given, layout.ballots)
    return jax.jit(step, donate_argnums=0, in_shardings=given, out_shardings=(placed, layout.copies))


def _with_votes(step: Callable[..., tuple[TrainState, jax.Array]]) -> Callable[..., tuple[TrainState, Any]]:
    def counted(state: TrainState, batch: Batch, votes: jax.Array) -> tuple[TrainState, Any]:
        state, loss = step(state, batch)
        return state, (loss, votes.sum())

    return counted


def _train_step(
    task: Task, structure: Skeleton, transform: optax.GradientTransformation
) -> Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]:
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        learned = {name: value for name, value in state.weights.items() if name in structure.trainable}
        kept = {name: value for name, value in state.weights.items() if name not in structure.trainable}

        def loss_of(learned: Weights) -> tuple[jax.Array, Weights]:
            module = structure.merge({**kept, **learned})
            module.train()
            loss, _ = task.loss(module, batch, key)
            after = flatten(module)
            return loss, {name: after[name] for name in kept}

        (loss, kept_after), gradients = jax.value_and_grad(loss_of, has_aux=True)(learned)
        updates, moments = transform.update(gradients, state.optimizer, learned)
        trained: Any = optax.apply_updates(learned, updates)
        return TrainState({**kept_after, **trained}, moments, state.rng, state.step + 1), loss

    return step


def mean_metrics(task: Task, structure: Skeleton) -> Callable[[Weights, Batch], Scalars]:
    """(weights, batches [batches, rows, ...]) -> the means of the loss and the task's metrics over the batches."""

    def evaluate(weights: Weights, batches: Batch) -> Scalars:
        def one(batch: Batch) -> Scalars:
            module = structure.merge(weights)
            module.eval()
            loss, metrics = task.loss(module, batch, jax.random.key(0))
            return {"loss": loss, **metrics}

        means = jax.lax.map(one, batches)
        return {name: values.mean() for name, values in means.items()}

    return evaluate
