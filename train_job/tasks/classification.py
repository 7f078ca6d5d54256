"""Digit classification: 64 pixels in, one of ten classes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train_job.data.digits import DigitsData, read_digits
from train_job.data.draws import draw
from train_job.data.sources import Corpus
from train_job.errors import UsageError
from train_job.presets import PredictSignature, Task


@dataclass(frozen=True)
class DigitClassification(Task):
    """The loss is the mean cross-entropy in nats per image; accuracy is reported beside it."""

    unit: str = "images"
    headline: str = "val_accuracy"

    def load(self, data: str | None, kept: Corpus | None = None) -> DigitsData:
        """The bundled digits, which no run keeps. Raises UsageError when `--data` asks for anything else."""
        del kept
        if data not in (None, "digits"):
            raise UsageError(
                f"--data: found {data!r}; the digits preset brings its own data: leave --data out"
            )
        return read_digits()

    def loss(self, module: Any, batch: Mapping[str, jax.Array], rng: jax.Array) -> tuple[jax.Array, dict]:
        """Cross-entropy and accuracy of "pixels" [b, 64] against "label" [b]."""
        del rng
        logits = module(batch["pixels"]).astype(jnp.float32)  # the softmax is never in bfloat16
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return nats.mean(), {"accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == batch["label"])}

    def signature(self) -> PredictSignature:
        """float32 pixels [b, 64] in [0, 1] -> float32 logits [b, 10]."""
        return PredictSignature(
            inputs={"pixels": ("float32", "b, 64")},
            outputs=("logits",),
            usage={
                "task": "classification",
                "input": "pixels",
                "output": "logits",
                "classes": "0,1,2,3,4,5,6,7,8,9",
                "scale": "grey values from 0 to 1, 8 rows of 8",
            },
        )

    def example_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        """float32 "pixels" [rows, 64]: images of the validation part."""
        images = read_digits().validation["pixels"]
        return {"pixels": images[draw(seed, 0, rows, below=len(images))]}
