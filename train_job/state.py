"""The state of a run between two steps, and its form on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Sharding

from train_job.mesh import Layout
from train_job.presets import ModelConfig
from train_job.weights import Weights, flatten, skeleton

type Tree = Any

_OF_STEPS = 2**31 - 1


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


def abstract_state(
    config: ModelConfig, transform: optax.GradientTransformation, layout: Layout
) -> TrainState:
    """Shape, dtype and sharding of every array of a run's state, none of which is made.

    What the optimizer keeps for a weight, of its shape and under its name, lies where the weight does.

    Raises:
        UsageError: as `Layout.weights`.
    """
    structure, copies = skeleton(config), layout.copies
    shapes = structure.abstract
    places = layout.weights(shapes, structure.trainable)
    state = jax.eval_shape(_beginning(config, structure.trainable, transform, seed=0))

    def beside(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        name = str(getattr(path[-1], "key", ""))  # of a dict by the weights' names; optax's tuples have none
        follows = name in shapes and shapes[name].shape == leaf.shape
        return _placed(leaf, places[name] if follows else copies)

    return TrainState(
        weights={name: _placed(leaf, places[name]) for name, leaf in state.weights.items()},
        optimizer=jax.tree_util.tree_map_with_path(beside, state.optimizer),
        rng=_placed(state.rng, copies),
        step=_placed(state.step, copies),
    )


def fresh_state(
    config: ModelConfig, transform: optax.GradientTransformation, seed: int, like: TrainState
) -> TrainState:
    """Step 0, a pure function of the seed, where `like` has it; made there, by each process, and never whole first."""
    trainable = skeleton(config).trainable
    return jax.jit(_beginning(config, trainable, transform, seed), out_shardings=shardings(like))()


def shardings(state: TrainState) -> Any:
    """The sharding of every leaf, in the structure of the state."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def bytes_per_device(arrays: Any) -> int:
    """Bytes that each device holds of a pytree of arrays, or of their abstract form."""
    leaves = jax.tree.leaves(arrays)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def _beginning(
    config: ModelConfig, trainable: frozenset[str], transform: optax.GradientTransformation, seed: int
) -> Callable[[], TrainState]:
    def begin() -> TrainState:
        weights = flatten(config.build(nnx.Rngs(seed)))
        learned = {key: value for key, value in weights.items() if key in trainable}
        # Apart from the keys that nnx.Rngs draws the weights with, which are those of 0, 1, ...
        rng = jax.random.key_data(jax.random.fold_in(jax.random.key(seed), _OF_STEPS))
        return TrainState(weights, transform.init(learned), rng, jnp.zeros((), jnp.int32))

    return begin


def _placed(leaf: Any, sharding: Sharding) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def flatten_tree(tree: Tree) -> dict[str, jax.Array]:
    """A pytree's leaves under dotted string keys: "1.0.mu.head.kernel"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def unflatten_tree(flat: Mapping[str, jax.Array], like: Tree) -> Tree:
    """Puts the leaves of `flatten_tree` back into the structure of `like`."""
    keys = flatten_tree(like)
    return jax.tree.unflatten(jax.tree.structure(like), [flat[key] for key in keys])
