"""Byte-level text for next-token prediction: a sequential split, windows by (seed, step), a bigram to beat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from train_job.data.draws import EVERY, draw, spread
from train_job.data.sources import Corpus
from train_job.errors import UsageError
from train_job.presets import Baseline, DataInfo, Dataset

VALIDATION_FRACTION = 0.1  # the last tenth: a shuffled split of text leaks its neighbours
_EVALUATION_TOKENS = 16 * 1024  # predictions per part and evaluation: good to about 0.03 bits per byte
_EVALUATION_ROWS = 32


@dataclass(frozen=True, eq=False)
class TextData(Dataset):
    """A corpus cut in two: `train` then `validation`, both uint8 [n]. Windows hold context + 1 bytes."""

    info: DataInfo
    train: np.ndarray
    validation: np.ndarray
    context: int

    def batch(self, seed: int, step: int, rows: int, own: slice = EVERY) -> dict[str, np.ndarray]:
        """uint8 "tokens" [rows, context + 1]: inputs and, one to the right, targets."""
        starts = draw(seed, step, rows, below=len(self.train) - self.context)[own]
        return {"tokens": _windows(self.train, starts, self.context)}

    def evaluation(self, part: str) -> dict[str, np.ndarray]:
        """uint8 "tokens" [batches, rows, context + 1] spread evenly over "train" or "validation"."""
        source = self.train if part == "train" else self.validation
        starts = evaluation_starts(len(source), self.context)
        return {"tokens": _windows(source, starts.ravel(), self.context).reshape(*starts.shape, -1)}

    def baselines(self) -> dict[str, Baseline]:
        """The byte-bigram model's bits per byte on the very windows of the validation part that a model is scored on."""
        return {"val_bits_per_byte": Baseline("byte bigram", self._bigram)}

    @cached_property
    def _bigram(self) -> float:
        return bigram_bits_per_byte(self.train, self.evaluation("validation")["tokens"])


def cut(corpus: Corpus, context: int) -> TextData:
    """Splits a corpus in sequence. Raises UsageError when a part is shorter than one window."""
    tokens = np.frombuffer(corpus.content, dtype=np.uint8)
    boundary = len(tokens) - math.ceil(len(tokens) * VALIDATION_FRACTION)
    train, validation = tokens[:boundary], tokens[boundary:]
    if len(validation) <= context:
        needed = math.ceil((context + 1) / VALIDATION_FRACTION)
        raise UsageError(
            f"--data {corpus.name}: found {len(tokens):,} bytes, needs at least {needed:,} "
            f"for windows of {context}"
        )
    info = DataInfo(
        name=corpus.name,
        sha256=corpus.sha256,
        bytes=len(tokens),
        train=f"{len(train):,} bytes",
        validation=f"{len(validation):,} bytes",
        source=corpus.source,
        content=corpus.content if corpus.source else None,
    )
    return TextData(info, train, validation, context)


def evaluation_starts(tokens: int, context: int) -> np.ndarray:
    """int64 [batches, rows]: where the windows that a part of so many tokens is evaluated on begin, evenly over it."""
    batches = max(1, round(_EVALUATION_TOKENS / (_EVALUATION_ROWS * context)))
    return spread(batches * _EVALUATION_ROWS, below=tokens - context).reshape(batches, _EVALUATION_ROWS)


def bigram_bits_per_byte(train: np.ndarray, validation: np.ndarray) -> float:
    """Bits per byte of p(byte | previous byte), counted on `train` with add-one smoothing, on `validation`.

    Both uint8, [n] and [..., m]. The first byte of a window has no predecessor and is not scored.
    """
    pairs = train[:-1].astype(np.intp) * 256 + train[1:]
    counts = np.bincount(pairs, minlength=256 * 256).reshape(256, 256) + 1.0
    bits = -np.log2(counts / counts.sum(axis=1, keepdims=True))
    return float(bits[validation[..., :-1], validation[..., 1:]].mean())


def _windows(source: np.ndarray, starts: np.ndarray, context: int) -> np.ndarray:
    return source[starts[:, None] + np.arange(context + 1)]
