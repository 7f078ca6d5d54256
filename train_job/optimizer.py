"""AdamW (Loshchilov and Hutter, 2019) under a linear warm-up and a cosine decay."""

from __future__ import annotations

from typing import Any

import jax
import optax

from train_job.settings import Hyperparameters


def schedule(hyper: Hyperparameters) -> optax.Schedule:
    """Step (0-based) -> learning rate: linear from 0 to the peak, then a cosine down to the last step."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if hyper.warmup_steps else hyper.learning_rate,
        peak_value=hyper.learning_rate,
        warmup_steps=hyper.warmup_steps,
        decay_steps=max(hyper.steps, hyper.warmup_steps + 1),
        end_value=hyper.learning_rate * hyper.final_lr_fraction,
    )


def optimizer(hyper: Hyperparameters) -> optax.GradientTransformation:
    """AdamW over a flat dict; the global gradient norm is clipped first. Only matrices are decayed."""
    adamw = optax.adamw(
        schedule(hyper), hyper.beta1, hyper.beta2, weight_decay=hyper.weight_decay, mask=_is_matrix
    )
    clip = optax.clip_by_global_norm(hyper.clip_norm) if hyper.clip_norm else optax.identity()
    return optax.chain(clip, adamw)


def _is_matrix(weights: dict[str, jax.Array]) -> dict[str, bool]:
    return {key: value.ndim > 1 for key, value in weights.items()}


def updates_done(state: Any) -> jax.Array:
    """int32 scalar: the updates that `optimizer`'s state has seen. The schedule counts by them, not by steps."""
    _, (adam, *_) = state
    return adam.count
