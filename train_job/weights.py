"""Modules as pure functions of a flat dict: "blocks.0.attn.query.kernel" -> array.

A flat dict with string keys is what checkpoints store and what `jax.export` can serialize; nested states with
integer keys are neither (they come back from disk as strings, and an update with them silently does nothing).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from train_job.errors import UsageError
from train_job.presets import ModelConfig

type Weights = dict[str, jax.Array]
type Path = tuple[Any, ...]


@dataclass(frozen=True)
class Skeleton:
    """A module without its arrays: its graph, and every variable's place in it by flat key."""

    graph: Any
    slots: dict[str, tuple[Path, nnx.Variable]]

    @property
    def abstract(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of every weight."""
        return {key: jax.ShapeDtypeStruct(slot.shape, slot.dtype) for key, (_, slot) in self.slots.items()}

    @property
    def trainable(self) -> frozenset[str]:
        """The weights that gradients update; the rest (a running mean) the module updates itself."""
        return frozenset(key for key, (_, slot) in self.slots.items() if isinstance(slot, nnx.Param))

    def merge(self, weights: Mapping[str, jax.Array]) -> Any:
        """The module holding `weights`. Raises UsageError unless their keys are exactly the model's."""
        if weights.keys() != self.slots.keys():
            odd = min(weights.keys() ^ self.slots.keys())
            side = "missing from" if odd in self.slots else "unknown to the model but among"
            raise UsageError(f"weight {odd!r} is {side} the given weights")
        state = [(path, slot.replace(weights[key])) for key, (path, slot) in self.slots.items()]
        return nnx.merge(self.graph, nnx.from_flat_state(state))


def skeleton(config: ModelConfig) -> Skeleton:
    """A model's structure, without allocating its weights.

    Raises:
        UsageError: `build` gives no module, or one that keeps random state of its own, which a checkpoint could not
        tell from weights, or an array that is no variable.
    """
    kind = type(config).__name__

    def build() -> nnx.Module:
        module = config.build(nnx.Rngs(0))
        if not isinstance(module, nnx.Module):
            raise UsageError(f"build of {kind} gave a {type(module).__name__}, needs a flax.nnx.Module")
        for path, part in nnx.iter_modules(module):
            for name, value in vars(part).items():
                if isinstance(value, jax.Array | np.ndarray):
                    raise _bare(kind, flat_key((*path, name)))
        return module

    graph, state = nnx.split(nnx.eval_shape(build))
    slots = {flat_key(path): (path, slot) for path, slot in nnx.to_flat_state(state)}
    for key, (_, slot) in slots.items():
        if not isinstance(slot, nnx.Variable):
            raise _bare(kind, key)
        if isinstance(slot, nnx.RngState):
            raise UsageError(
                f"model holds random state {key!r}; build that layer without a stream of its own (nnx.Dropout without "
                "rngs, nnx.MultiHeadAttention with keep_rngs=False, nnx.RNN with rngs=False) and hand over at the call "
                "what it then needs: rngs=nnx.Rngs(rng) of the task's loss for dropout, initial_carry to an RNN"
            )
    return Skeleton(graph, slots)


def _bare(kind: str, key: str) -> UsageError:
    """Flax takes such an array for a setting of the module: it would be in no checkpoint."""
    return UsageError(
        f"the module of {kind} holds {key!r} as a bare array; make it an nnx.Param to train it, an nnx.Variable to keep "
        "it, or compute it in the call"
    )


def initialise(config: ModelConfig, seed: int) -> Weights:
    """Fresh weights on the first device, a pure function of the seed."""

    def build() -> Weights:
        return flatten(config.build(nnx.Rngs(seed)))

    return jax.jit(build)()  # one compiled program: eager initialisers cost a compile each


def flatten(module: Any) -> Weights:
    """The arrays of every variable of a module, by flat key."""
    return {flat_key(path): slot[...] for path, slot in nnx.to_flat_state(nnx.state(module))}


def flat_key(path: Path) -> str:
    """("blocks", 0, "kernel") -> "blocks.0.kernel"."""
    return ".".join(map(str, path))
