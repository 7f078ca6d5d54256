"""The two compiled programs of a run: one training step, one evaluation.

Both are compiled before the first step. A compiled program cannot compile again: an argument of another shape
or dtype raises instead, so a recompilation in the middle of a run is impossible rather than unlikely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from train_job.compute import AS_MADE, Compute
from train_job.flops import training_flops
from train_job.mesh import Layout
from train_job.optimizer import optimizer
from train_job.presets import Preset, Task
from train_job.settings import Hyperparameters, Upkeep
from train_job.state import TrainState, shardings
from train_job.weights import Skeleton, Weights, flatten, skeleton

type Batch = Mapping[str, Any]
type Scalars = dict[str, jax.Array]
type LossOf = Callable[[Weights, Weights, Batch, jax.Array], tuple[jax.Array, Weights]]


class Outcome(NamedTuple):
    """What a step says of itself, as scalars.

    loss: float32, the mean over the batch's rows. grad_norm: float32, the global norm of the gradient, before it is
    clipped. A step where one of them is not finite has left weights and optimizer as they were. votes: int32, the sum
    of what the processes said, where there is more than one.
    """

    loss: jax.Array
    grad_norm: jax.Array
    votes: jax.Array | None = None


@dataclass(frozen=True)
class Programs:
    """step: (state, batch) -> (next state, Outcome), consuming the state. evaluate: (weights, batches) -> means.

    With peers the step takes their votes as well, int32 [devices].
    """

    step: Callable[..., tuple[TrainState, Outcome]]
    evaluate: Callable[[Weights, Batch], Scalars]


def compile_programs(
    preset: Preset,
    hyper: Hyperparameters,
    upkeep: Upkeep,
    layout: Layout,
    state: TrainState,
    batch: Batch,
    evaluation: Batch,
) -> Programs:
    """Compiles both programs for the shapes of `state`, `batch` [rows, ...], `evaluation` [batches, rows, ...]."""
    compute = Compute.of(hyper, upkeep)
    evaluate = jax.jit(
        mean_metrics(preset.task, skeleton(preset.model), compute), out_shardings=layout.copies
    )
    ballots = () if layout.processes.alone else (layout.vote(False),)
    return Programs(
        step=jit_step(preset, hyper, layout, state, compute).lower(state, batch, *ballots).compile(),
        evaluate=evaluate.lower(state.weights, evaluation).compile(),
    )


def jit_step(
    preset: Preset, hyper: Hyperparameters, layout: Layout, state: TrainState, compute: Compute = AS_MADE
) -> Any:
    """The training step under jit, which leaves every leaf where `state`, or its abstract form, has it."""
    loss_of = loss_function(preset.task, skeleton(preset.model), compute)
    transform = optimizer(hyper, preset.optimizer)
    step = _train_step(loss_of, skeleton(preset.model).trainable, transform, hyper.accumulate)
    placed = shardings(state)
    given = (placed, layout.rows)
    if not layout.processes.alone:
        step, given = _with_votes(step), (*given, layout.ballots)
    return jax.jit(step, donate_argnums=0, in_shardings=given, out_shardings=(placed, layout.copies))


def _with_votes(step: Callable[..., tuple[TrainState, Outcome]]) -> Callable[..., tuple[TrainState, Outcome]]:
    def counted(state: TrainState, batch: Batch, votes: jax.Array) -> tuple[TrainState, Outcome]:
        state, outcome = step(state, batch)
        return state, outcome._replace(votes=votes.sum())

    return counted


def _train_step(
    loss_of: LossOf, trainable: frozenset[str], transform: optax.GradientTransformation, parts: int
) -> Callable[[TrainState, Batch], tuple[TrainState, Outcome]]:
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Outcome]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        learned = {name: value for name, value in state.weights.items() if name in trainable}
        kept = {name: value for name, value in state.weights.items() if name not in trainable}
        loss, kept_after, gradients = mean_gradients(loss_of, learned, kept, batch, key, parts)
        norm = optax.tree.norm(gradients)
        updates, moments = transform.update(gradients, state.optimizer, learned)
        trained: Any = optax.apply_updates(learned, updates)
        after = {**kept_after, **trained}, moments
        before = state.weights, state.optimizer
        weights, moments = _where(jnp.isfinite(loss) & jnp.isfinite(norm), after, before)
        return TrainState(weights, moments, state.rng, state.step + 1), Outcome(loss, norm)

    return step


def _where(chosen: jax.Array, these: Any, those: Any) -> Any:
    """One of two trees, decided on the device: the host hears of a step when later ones are under way."""
    return jax.tree.map(lambda this, that: jnp.where(chosen, this, that), these, those)


def loss_function(task: Task, structure: Skeleton, compute: Compute) -> LossOf:
    """(learned weights, those that no gradient touches, batch, key) -> (mean loss, the latter as the module left them)."""

    def loss_of(learned: Weights, kept: Weights, batch: Batch, key: jax.Array) -> tuple[jax.Array, Weights]:
        module = compute.applied(structure.merge({**kept, **learned}))
        module.train()
        loss, _ = task.loss(module, batch, key)
        after = flatten(module)
        return loss.astype(jnp.float32), {name: after[name] for name in kept}

    return loss_of


def mean_gradients(
    loss_of: LossOf, learned: Weights, kept: Weights, batch: Batch, key: jax.Array, parts: int
) -> tuple[jax.Array, Weights, Weights]:
    """Mean loss, kept weights and mean gradients of a batch that is computed in so many parts, one after the other.

    Each part weighs the same. It has every `parts`-th row, so that every device has an equal share of it without
    sending rows about; its key follows from the step's and its number.
    """
    differentiated = jax.value_and_grad(loss_of, has_aux=True)
    if parts == 1:
        (loss, kept), gradients = differentiated(learned, kept, batch, key)
        return loss, kept, gradients

    def add(sums: tuple[Any, Weights], part: tuple[jax.Array, Batch]) -> tuple[tuple[Any, Weights], None]:
        (total, kept), (number, rows) = sums, part
        (loss, kept), gradients = differentiated(learned, kept, rows, jax.random.fold_in(key, number))
        return (jax.tree.map(jnp.add, total, (loss, gradients)), kept), None

    nothing = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, learned)
    numbered = jnp.arange(parts), {name: _every(parts, values) for name, values in batch.items()}
    (total, kept), _ = jax.lax.scan(add, (nothing, kept), numbered)
    loss, gradients = jax.tree.map(lambda value: value / parts, total)
    return loss, kept, gradients


def _every(parts: int, values: jax.Array) -> jax.Array:
    """[rows, ...] -> [parts, rows / parts, ...]."""
    values = jnp.asarray(values)
    return jnp.moveaxis(values.reshape(-1, parts, *values.shape[1:]), 1, 0)


def mean_metrics(
    task: Task, structure: Skeleton, compute: Compute = AS_MADE
) -> Callable[[Weights, Batch], Scalars]:
    """(weights, batches [batches, rows, ...]) -> the means of the loss and the task's metrics over the batches."""

    def evaluate(weights: Weights, batches: Batch) -> Scalars:
        def one(batch: Batch) -> Scalars:
            module = compute.applied(structure.merge(weights))
            module.eval()
            loss, metrics = task.loss(module, batch, jax.random.key(0))
            return {"loss": loss, **metrics}

        means = jax.lax.map(one, batches)
        return {name: values.mean() for name, values in means.items()}

    return evaluate


def model_flops(preset: Preset, batch: Batch) -> int:
    """Floating-point operations of one step on `batch`, as the model needs them: see `train_job.flops`."""
    structure = skeleton(preset.model)

    def forward(weights: Weights, batch: Batch) -> jax.Array:
        module = structure.merge(weights)
        module.train()
        return preset.task.loss(module, batch, jax.random.key(0))[0]

    rows = {name: jax.ShapeDtypeStruct(values.shape, values.dtype) for name, values in batch.items()}
    return training_flops(jax.make_jaxpr(forward)(structure.abstract, rows).jaxpr)
