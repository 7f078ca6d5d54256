"""A plain multilayer perceptron for feature vectors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx


@dataclass(frozen=True)
class MlpConfig:
    """The classifier's shape: `features` numbers in, `hidden` layers of ReLU, `classes` logits out."""

    features: int
    hidden: tuple[int, ...]
    classes: int

    def build(self, rngs: nnx.Rngs) -> MlpClassifier:
        """An MlpClassifier with fresh float32 weights."""
        return MlpClassifier(self, rngs)


class MlpClassifier(nnx.Module):
    """float32 features [b, features] -> float32 logits [b, classes]."""

    def __init__(self, config: MlpConfig, rngs: nnx.Rngs) -> None:
        widths = (config.features, *config.hidden)
        self.hidden = nnx.List(
            [nnx.Linear(fan_in, fan_out, rngs=rngs) for fan_in, fan_out in pairwise(widths)]
        )
        self.head = nnx.Linear(
            widths[-1], config.classes, preferred_element_type=jnp.float32, rngs=rngs
        )  # of whatever it is given

    def __call__(self, features: jax.Array) -> jax.Array:
        x = features
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.head(x)
