"""Next-byte prediction: every position of a window predicts the byte after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from train_job.data.draws import draw
from train_job.data.shards import shards_at
from train_job.data.sources import Corpus, read_corpus, read_stdlib
from train_job.data.text import TextData, cut
from train_job.data.windows import ShardData, open_shards
from train_job.presets import PredictSignature
from train_job.settings import DEFAULT_DATA


@dataclass(frozen=True)
class NextToken:
    """Windows of `context` bytes; the loss is the mean cross-entropy in nats per byte."""

    context: int
    vocabulary: int = 256
    unit: str = "tokens"
    headline: str = "val_bits_per_byte"

    def load(self, data: str | None, kept: Corpus | None = None) -> TextData | ShardData:
        """Splits `kept`, or `--data` (default: the standard library's sources), in sequence; or opens token shards."""
        folder = None if data is None or kept is not None else shards_at(data)
        if folder is not None:
            return open_shards(folder, self.context, self.vocabulary)
        return cut(kept or read_corpus(DEFAULT_DATA if data is None else data), self.context)

    def loss(self, module: Any, batch: Mapping[str, jax.Array], rng: jax.Array) -> tuple[jax.Array, dict]:
        """Cross-entropy of "tokens" [b, context + 1], whose last `context` are the targets."""
        del rng  # no dropout in the presets
        tokens = batch["tokens"].astype(jnp.int32)
        logits = module(tokens[:, :-1]).astype(jnp.float32)  # the softmax is never in bfloat16
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return nats.mean(), {}

    def report(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Adds bits per byte (nats / ln 2) to both losses."""
        bits = {
            f"{part}_bits_per_byte": metrics[f"{part}_loss"] / math.log(2)
            for part in ("train", "val")
            if f"{part}_loss" in metrics
        }
        return {**metrics, **bits}

    def positions(self, rows: int) -> int:
        """Bytes predicted per batch."""
        return rows * self.context

    def signature(self) -> PredictSignature:
        """int32 tokens [b, context] -> float32 logits [b, context, 256]; or [b, t] -> [b, t, 256]."""
        return PredictSignature(
            inputs={"tokens": ("int32", f"b, {self.context}")},
            outputs=("logits",),
            usage={
                "task": "next_token",
                "tokenizer": "bytes",
                "input": "tokens",
                "output": "logits",
                "context": str(self.context),
            },
            any_length={"tokens": ("int32", "b, t")},
            longest=self.context,
        )

    def example_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        """int32 "tokens" [rows, context]: windows of the standard library's sources."""
        source = np.frombuffer(read_stdlib().content, dtype=np.uint8)
        starts = draw(seed, 0, rows, below=len(source) - self.context)
        return {"tokens": source[starts[:, None] + np.arange(self.context)].astype(np.int32)}
