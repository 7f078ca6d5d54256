"""AdamW (Loshchilov and Hutter, 2019) under a linear warm-up and a cosine decay, or what a preset has in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from train_job.settings import Hyperparameters

type OwnOptimizer = Callable[[Hyperparameters], optax.GradientTransformation]


def schedule(hyper: Hyperparameters) -> optax.Schedule:
    """Step (0-based) -> learning rate: linear from 0 to the peak, then a cosine down to the last step."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if hyper.warmup_steps else hyper.learning_rate,
        peak_value=hyper.learning_rate,
        warmup_steps=hyper.warmup_steps,
        decay_steps=max(hyper.steps, hyper.warmup_steps + 1),
        end_value=hyper.learning_rate * hyper.final_lr_fraction,
    )


def optimizer(hyper: Hyperparameters, own: OwnOptimizer | None = None) -> optax.GradientTransformation:
    """AdamW over a flat dict, or `own`; the global gradient norm is clipped first. AdamW decays matrices only."""
    clip = optax.clip_by_global_norm(hyper.clip_norm) if hyper.clip_norm else optax.identity()
    if own is not None:
        # The last changes nothing, and counts: what another optimizer keeps is its own matter.
        return optax.chain(clip, own(hyper), optax.scale_by_schedule(lambda _: 1.0))
    adamw = optax.adamw(
        schedule(hyper), hyper.beta1, hyper.beta2, weight_decay=hyper.weight_decay, mask=_is_matrix
    )
    return optax.chain(clip, adamw)


def _is_matrix(weights: dict[str, jax.Array]) -> dict[str, bool]:
    return {key: value.ndim > 1 for key, value in weights.items()}


def updates_done(state: Any) -> jax.Array:
    """int32 scalar: the updates that `optimizer`'s state has seen. The schedule counts by them, not by steps."""
    if isinstance(state[-1], optax.ScaleByScheduleState):
        return state[-1].count
    _, (adam, *_) = state
    return adam.count
