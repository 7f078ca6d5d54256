"""The same training in one plain function: a decoder-only transformer, AdamW and a loop, and nothing of train_job but
what a seed decides, the fresh weights and the rows of each step.

Model, loss, clipping, optimizer and schedule are written out here, after the papers that train_job/models/transformer.py
and train_job/optimizer.py name. Weights are a flat dict under train_job's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train_job.models.transformer import TransformerConfig
from train_job.presets import Dataset
from train_job.settings import Hyperparameters
from train_job.weights import initialise

type Weights = dict[str, jax.Array]
type Trained = tuple[Weights, Weights, Weights]  # weights, their gradients' first and second moments

_ADAM_EPSILON, _NORM_EPSILON = 1e-8, 1e-6


def train(
    config: TransformerConfig, hyper: Hyperparameters, data: Dataset, every: int, kept: Path
) -> Iterator[tuple[int, float]]:
    """Yields (steps done, mean validation loss in nats) at each multiple of `every` and at the last step.

    kept: a file for the state, written before each is yielded; where it is there, training goes on from it.
    """
    step_of = jax.jit(
        lambda trained, tokens, step: _step(config, hyper, trained, tokens, step), donate_argnums=0
    )
    validation = jnp.asarray(data.evaluation("validation")["tokens"], jnp.int32)
    validate = jax.jit(
        lambda weights: jax.lax.map(lambda tokens: loss(config, weights, tokens), validation).mean()
    )
    trained, done = _kept(kept) or (_fresh(config, hyper.seed), 0)
    while done < hyper.steps:
        tokens = jnp.asarray(data.batch(hyper.seed, done, hyper.batch_size)["tokens"], jnp.int32)
        trained = step_of(trained, tokens, jnp.int32(done))
        done += 1
        if done % every == 0 or done == hyper.steps:
            found = float(validate(trained[0]))
            _keep(kept, trained, done)
            yield done, found


def logits(config: TransformerConfig, weights: Mapping[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """int32 [b, t] -> float32 [b, t, vocab]."""
    time = tokens.shape[1]
    x = weights["token_embed.embedding"][tokens] + weights["position_embed.embedding"][:time]
    for layer in range(config.layers):
        of = {name.removeprefix(f"blocks.{layer}."): value for name, value in weights.items()}
        x = x + _attention(config, of, _norm(x, of, "attn_norm"))
        hidden = jax.nn.gelu(_linear(_norm(x, of, "mlp_norm"), of, "mlp.up"), approximate=True)
        x = x + _linear(hidden, of, "mlp.down")
    return _norm(x, weights, "final_norm") @ weights["head.kernel"]


def loss(config: TransformerConfig, weights: Mapping[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy, in nats, of each token of [b, t + 1] from those before it."""
    guesses = jax.nn.log_softmax(logits(config, weights, tokens[:, :-1]))
    return -jnp.take_along_axis(guesses, tokens[:, 1:, None], axis=-1).mean()


def _attention(config: TransformerConfig, of: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    rows, time, width = x.shape
    heads = [
        _linear(x, of, f"attn.{name}").reshape(rows, time, config.heads, -1)
        for name in ("query", "key", "value")
    ]
    query, key, value = heads
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(width // config.heads)
    behind = jnp.tril(jnp.ones((time, time), bool))
    shares = jax.nn.softmax(jnp.where(behind, scores, -jnp.inf))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, value)
    return _linear(mixed.reshape(rows, time, width), of, "attn.out")


def _linear(x: jax.Array, of: Mapping[str, jax.Array], name: str) -> jax.Array:
    return x @ of[f"{name}.kernel"] + of[f"{name}.bias"]


def _norm(x: jax.Array, of: Mapping[str, jax.Array], name: str) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + _NORM_EPSILON)
    return scaled * of[f"{name}.scale"] + of[f"{name}.bias"]


def _step(
    config: TransformerConfig, hyper: Hyperparameters, trained: Trained, tokens: jax.Array, step: jax.Array
) -> Trained:
    """One update of AdamW; step: those done before."""
    weights, first, second = trained
    gradients = jax.grad(lambda weights: loss(config, weights, tokens))(weights)
    norm = jnp.sqrt(sum(jnp.sum(each**2) for each in gradients.values()))
    shrink = jnp.minimum(1.0, hyper.clip_norm / norm) if hyper.clip_norm else 1.0
    rate, count = _rate(hyper, step), step + 1.0
    after: Trained = {}, {}, {}
    for name, weight in weights.items():
        gradient = gradients[name] * shrink
        mean = hyper.beta1 * first[name] + (1 - hyper.beta1) * gradient
        spread = hyper.beta2 * second[name] + (1 - hyper.beta2) * gradient**2
        unbiased = mean / (1 - hyper.beta1**count), spread / (1 - hyper.beta2**count)
        decay = hyper.weight_decay * weight if weight.ndim > 1 else 0.0
        move = unbiased[0] / (jnp.sqrt(unbiased[1]) + _ADAM_EPSILON) + decay
        after[0][name], after[1][name], after[2][name] = weight - rate * move, mean, spread
    return after


def _rate(hyper: Hyperparameters, step: jax.Array) -> jax.Array:
    """Linear from 0 to the peak, then half a cosine down to its last fraction at the last step."""
    peak, last = hyper.learning_rate, hyper.learning_rate * hyper.final_lr_fraction
    through = jnp.clip((step - hyper.warmup_steps) / max(hyper.steps - hyper.warmup_steps, 1), 0.0, 1.0)
    falling = last + (peak - last) * 0.5 * (1 + jnp.cos(math.pi * through))
    return jnp.where(step < hyper.warmup_steps, peak * step / max(hyper.warmup_steps, 1), falling)


def _fresh(config: TransformerConfig, seed: int) -> Trained:
    weights = initialise(config, seed)
    # Two of them: the step consumes both.
    first, second = ({name: jnp.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    return weights, first, second


def _keep(file: Path, trained: Trained, done: int) -> None:
    arrays: dict[str, Any] = {"done": np.int32(done)}
    for place, group in enumerate(trained):
        arrays |= {f"{place} {name}": np.asarray(value) for name, value in group.items()}
    beside = file.with_suffix(".new.npz")
    np.savez(beside, **arrays)
    beside.replace(file)


def _kept(file: Path) -> tuple[Trained, int] | None:
    if not file.exists():
        return None
    groups: Trained = {}, {}, {}
    with np.load(file) as arrays:
        for key in arrays.files:
            place, _, name = key.partition(" ")
            if name:
                groups[int(place)][name] = jnp.asarray(arrays[key])
        return groups, int(arrays["done"])
