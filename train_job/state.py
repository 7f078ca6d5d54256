"""The state of a run between two steps, and its form on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Sharding

from train_job.weights import Weights, initialise

type Tree = Any


class TrainState(NamedTuple):
    """Everything the next step depends on. Step n + 1 is a pure function of this and of batch n."""

    weights: Weights  # flat key -> array
    optimizer: Tree  # optax's state over the trainable weights
    rng: jax.Array  # uint32 key data; step n draws from fold_in(rng, n)
    step: jax.Array  # int32 scalar: steps done, and the position in the data

    def as_items(self) -> dict[str, dict[str, jax.Array]]:
        """The checkpoint's items, each a flat dict of string keys."""
        return {
            "params": dict(self.weights),
            "optimizer": flatten_tree(self.optimizer),
            "rng": {"key_data": self.rng},
            "position": {"step": self.step},
        }

    @classmethod
    def from_items(cls, items: Mapping[str, Mapping[str, jax.Array]], like: TrainState) -> TrainState:
        """The inverse of `as_items`; `like` gives the structure of the optimizer's state."""
        return cls(
            weights=dict(items["params"]),
            optimizer=unflatten_tree(items["optimizer"], like.optimizer),
            rng=items["rng"]["key_data"],
            step=items["position"]["step"],
        )


def fresh_state(
    config: Any,
    trainable: frozenset[str],
    transform: optax.GradientTransformation,
    seed: int,
    placed: Sharding | None,
) -> TrainState:
    """Step 0, a pure function of the seed, on the devices of `placed` (None: the first), made there by each process."""
    weights = initialise(config, seed, placed)
    learned = {key: value for key, value in weights.items() if key in trainable}

    def beginning() -> tuple[jax.Array, jax.Array]:
        return jax.random.key_data(jax.random.key(seed)), jnp.zeros((), jnp.int32)

    rng, step = jax.jit(beginning, out_shardings=placed)()
    return TrainState(weights, jax.jit(transform.init, out_shardings=placed)(learned), rng, step)


def flatten_tree(tree: Tree) -> dict[str, jax.Array]:
    """A pytree's leaves under dotted string keys: "1.0.mu.head.kernel"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def unflatten_tree(flat: Mapping[str, jax.Array], like: Tree) -> Tree:
    """Puts the leaves of `flatten_tree` back into the structure of `like`."""
    keys = flatten_tree(like)
    return jax.tree.unflatten(jax.tree.structure(like), [flat[key] for key in keys])
