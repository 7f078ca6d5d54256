"""How a module computes, beside what it computes: in which dtype, and what it keeps for its backward pass.

Both are attributes of modules, set on the one that holds the weights, as Flax's `train()` sets `deterministic`:

    dtype   every Flax layer has one. Where its author left it open (None), the layer casts its inputs and weights to
            the run's dtype when it is called. The weights stay what they are, and so do their gradients.
    remat   a module that can recompute its blocks has it, and honours it in `__call__`.

What a run exports is never touched by either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import nnx

from train_job.errors import UsageError
from train_job.presets import ModelConfig
from train_job.settings import Hyperparameters, Upkeep

FLOAT32 = "float32"  # what a module computes in by itself, where its author says nothing else


@dataclass(frozen=True)
class Compute:
    """dtype: "float32" leaves every layer as its author made it. remat: blocks are recomputed, not kept."""

    dtype: str = FLOAT32
    remat: bool = False

    @classmethod
    def of(cls, hyper: Hyperparameters, upkeep: Upkeep) -> Compute:
        """What a run was asked for."""
        return cls(hyper.compute_dtype, upkeep.remat)

    def applied(self, module: Any) -> Any:
        """The same module, set to compute so."""
        if self.dtype != FLOAT32:
            for layer in _with_open_dtype(module):
                layer.dtype = jnp.dtype(self.dtype)
        if self.remat:
            for part in _with_remat(module):
                part.remat = True
        return module

    def require_applicable(self, config: ModelConfig) -> None:
        """Raises UsageError where the model could not do it, which would otherwise go unnoticed."""
        if self == AS_MADE:
            return
        module, kind = nnx.eval_shape(lambda: config.build(nnx.Rngs(0))), type(config).__name__
        if self.dtype != FLOAT32 and not any(_with_open_dtype(module)):
            raise UsageError(
                f"--set compute_dtype: found {self.dtype}, needs {FLOAT32}: no layer of {kind} leaves its dtype open "
                "(dtype=None)"
            )
        if self.remat and not any(_with_remat(module)):
            raise UsageError(
                f"--set remat: found true, needs false: no module of {kind} has an attribute `remat` to honour"
            )


AS_MADE = Compute()


def _with_open_dtype(module: Any) -> Iterator[Any]:
    return (part for _, part in nnx.iter_modules(module) if getattr(part, "dtype", FLOAT32) is None)


def _with_remat(module: Any) -> Iterator[Any]:
    return (part for _, part in nnx.iter_modules(module) if hasattr(part, "remat"))
