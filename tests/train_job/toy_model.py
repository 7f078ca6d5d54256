"""Presets small enough to train in a second, reached by `--model toy_model:NAME` as a user's would be.

STOP_AT in the environment sends this process SIGTERM when the loop takes that step's batch: a preemption at a known
moment. INTERRUPT_AT sends SIGINT and KILL_AT SIGKILL. PYTHON_OF_IMAGE makes the default data a small standard library
of that version: that of 1.0 is argparse.py, every other begins with a thousand bytes more.
NAN_AT, as in 6,7, makes the pixels of those steps' batches NaN.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from train_job.data.digits import DigitsData
from train_job.data.draws import EVERY
from train_job.data.sources import Corpus
from train_job.data.text import TextData
from train_job.models.mlp import MlpConfig
from train_job.models.transformer import TransformerConfig
from train_job.optimizer import schedule
from train_job.prefetch import Prefetch
from train_job.presets import Preset
from train_job.settings import Hyperparameters, Upkeep
from train_job.tasks.classification import DigitClassification
from train_job.tasks.next_token import NextToken

STEPS = 12


def send_signals(step: int) -> None:
    for variable, number in (
        ("STOP_AT", signal.SIGTERM),
        ("INTERRUPT_AT", signal.SIGINT),
        ("KILL_AT", signal.SIGKILL),
    ):
        if os.environ.get(variable) == str(step):
            os.kill(os.getpid(), number)


def taking(self: Prefetch, step: int, take: Callable[..., Any] = Prefetch.take) -> Any:
    send_signals(step)
    return take(self, step)


Prefetch.take = taking  # in every process that trains one of these, whatever its data


class ImagesNextToken(NextToken):
    """Next-byte prediction over what PYTHON_OF_IMAGE brings."""

    def load(self, data: str | None, kept: Corpus | None = None) -> TextData:
        python = os.environ.get("PYTHON_OF_IMAGE")
        if python and kept is None:
            content = b"\n" * 1000 * (python != "1.0") + Path(argparse.__file__).read_bytes()
            kept = Corpus(f"standard library of Python {python}", content, "stdlib")
        return super().load(data, kept)


def toy() -> Preset:
    model = TransformerConfig(layers=1, d_model=16, heads=2, ffn=32, context=16)
    return Preset(
        name="toy",
        model=model,
        task=ImagesNextToken(model.context),
        hyper=Hyperparameters(steps=STEPS, batch_size=4, learning_rate=1e-2, warmup_steps=2),
        upkeep=Upkeep(eval_every=4, checkpoint_every=4),
    )


def momentum(hyper: Hyperparameters) -> optax.GradientTransformation:
    return optax.sgd(schedule(hyper), momentum=0.9)


def lion(hyper: Hyperparameters) -> optax.GradientTransformation:
    return optax.lion(schedule(hyper))


def with_momentum() -> Preset:
    hyper = dataclasses.replace(toy().hyper, learning_rate=0.3)
    return dataclasses.replace(toy(), hyper=hyper, optimizer=momentum)


def with_lion() -> Preset:
    return dataclasses.replace(with_momentum(), optimizer=lion)


def wide() -> Preset:
    """With matrices that are large enough to be cut over devices, and rows for eight of them."""
    model = TransformerConfig(layers=1, d_model=32, heads=2, ffn=64, context=16)
    hyper = dataclasses.replace(toy().hyper, batch_size=16)
    return dataclasses.replace(toy(), name="wide", model=model, hyper=hyper)


@dataclass(frozen=True)
class NormalisedConfig:
    """A classifier with running statistics: variables that no gradient touches."""

    width: int = 8

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        return Normalised(self, rngs)


class Normalised(nnx.Module):
    def __init__(self, config: NormalisedConfig, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        return self.head(self.norm(pixels))


def normalised() -> Preset:
    return _digits_with(NormalisedConfig())


def mlp() -> Preset:
    return _digits_with(MlpConfig(features=64, hidden=(8,), classes=10))


@dataclass(frozen=True)
class OpaqueConfig:
    """A module without a layer of Flax: no dtype of it can be set."""

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        return Opaque(rngs)


class Opaque(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (64, 10)))

    def __call__(self, pixels: jax.Array) -> jax.Array:
        return pixels @ self.kernel[...]


def opaque() -> Preset:
    return _digits_with(OpaqueConfig())


@dataclass(frozen=True)
class DropoutConfig:
    """Keeps random state in the module, which a run refuses."""

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Dropout(0.1, rngs=rngs)


def dropout() -> Preset:
    return _digits_with(DropoutConfig())


def _digits_with(model: object) -> Preset:
    return Preset(
        name="toy-digits",
        model=model,  # type: ignore[arg-type]
        task=DigitClassification(),
        hyper=Hyperparameters(steps=STEPS, batch_size=16, learning_rate=1e-2, warmup_steps=2),
        upkeep=Upkeep(eval_every=6, checkpoint_every=6),
    )


@dataclass(frozen=True, eq=False)
class SpoiltDigits(DigitsData):
    """Digits whose batches at the steps NAN_AT are no numbers."""

    def batch(self, seed: int, step: int, rows: int, own: slice = EVERY) -> dict[str, np.ndarray]:
        batch = super().batch(seed, step, rows, own)
        spoilt = str(step) in os.environ.get("NAN_AT", "").split(",")
        return {**batch, "pixels": batch["pixels"] * np.float32(np.nan if spoilt else 1)}


class SpoiltClassification(DigitClassification):
    """Classification of SpoiltDigits."""

    def load(self, data: str | None, kept: Corpus | None = None) -> DigitsData:
        loaded = super().load(data, kept)
        return SpoiltDigits(loaded.info, loaded.train, loaded.validation)


def spoilt() -> Preset:
    return dataclasses.replace(mlp(), task=SpoiltClassification())


def not_a_preset() -> str:
    return "toy"


def slow_to_compile() -> Preset:
    """Unrolled and deep: many seconds in the compiler, as a large model on an accelerator."""
    model = TransformerConfig(layers=24, d_model=16, heads=2, ffn=32, context=16)
    return dataclasses.replace(toy(), model=model)
