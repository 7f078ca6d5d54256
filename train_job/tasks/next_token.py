"""Next-token prediction: every position of a window predicts the token after it, a byte unless a tokenizer made it."""

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
from train_job.data.shards import BYTES, HUGGING_FACE, shards_at
from train_job.data.sources import Corpus, read_corpus, read_stdlib
from train_job.data.text import TextData, cut
from train_job.data.windows import ShardData, open_shards
from train_job.presets import PredictSignature, Task, Tokenization
from train_job.settings import DEFAULT_DATA


@dataclass(frozen=True)
class NextToken(Task):
    """Windows of `context` tokens; the loss is the mean cross-entropy in nats per token.

    tokens: what they stand for; None for bytes.
    """

    context: int
    tokens: Tokenization | None = None
    unit: str = "tokens"
    headline: str = "val_bits_per_byte"

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return 256 if self.tokens is None else self.tokens.vocabulary

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
        """Adds bits per byte of text to both losses: nats / ln 2, over the bytes that a token of the part stands for."""
        one = (1.0, 1.0)
        bytes_ = (
            one
            if self.tokens is None
            else (self.tokens.train_bytes_per_token, self.tokens.val_bytes_per_token)
        )
        bits = {
            f"{part}_bits_per_byte": metrics[f"{part}_loss"] / math.log(2) / per_token
            for part, per_token in zip(("train", "val"), bytes_, strict=True)
            if f"{part}_loss" in metrics
        }
        return {**metrics, **bits}

    def positions(self, rows: int) -> int:
        """Tokens predicted per batch."""
        return rows * self.context

    def signature(self) -> PredictSignature:
        """int32 tokens [b, context] -> float32 logits [b, context, vocabulary]; or [b, t] -> [b, t, vocabulary]."""
        made_by = {"tokenizer": BYTES}
        if self.tokens is not None:
            made_by = {"tokenizer": HUGGING_FACE, "tokenizer_sha256": self.tokens.sha256}
        return PredictSignature(
            inputs={"tokens": ("int32", f"b, {self.context}")},
            outputs=("logits",),
            usage={
                "task": "next_token",
                **made_by,
                "input": "tokens",
                "output": "logits",
                "context": str(self.context),
            },
            any_length={"tokens": ("int32", "b, t")},
            longest=self.context,
        )

    def example_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        """int32 "tokens" [rows, context]: windows of the standard library's sources; any tokens, where they are not bytes."""
        if self.tokens is not None:
            drawn = draw(seed, 0, rows * self.context, below=self.vocabulary)
            return {"tokens": drawn.reshape(rows, self.context).astype(np.int32)}
        source = np.frombuffer(read_stdlib().content, dtype=np.uint8)
        starts = draw(seed, 0, rows, below=len(source) - self.context)
        return {"tokens": source[starts[:, None] + np.arange(self.context)].astype(np.int32)}
