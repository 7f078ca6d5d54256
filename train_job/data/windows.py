"""Token shards to train on: every window once an epoch, in an order that is a pure function of (seed, position).

A part is one line of tokens, whichever files it lies in. It is cut into windows of `context` tokens; each is read with
the token behind it, so that every token but the first is a target once an epoch. Nothing is held but what a batch needs:
files are read where a window lies, and the order of the windows is computed for one at a time.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from train_job.data.draws import EVERY, draw
from train_job.data.shards import (
    BYTES,
    Index,
    Part,
    check_digests,
    check_sizes,
    read_index,
    read_tokenizer,
    tokenization,
)
from train_job.data.text import bigram_bits_per_byte, evaluation_starts
from train_job.errors import CheckFailed, EnvironmentUnfit, UsageError, describe_cause
from train_job.presets import Baseline, DataInfo, Dataset

# Shards of so many bytes are read through at every start, a second or two; of larger ones only the sizes are looked at.
VERIFIED_BYTES = 2**30
_BASELINE_TOKENS = 2**24  # of the training part: enough to count pairs of bytes
# What Grain made of them when this was written: runs go on with the order that they began with, or not at all.
_WRITTEN_FOR = "0.2.18"
_KNOWN = {
    0: 687,
    1: 904,
    999: 677,
    1000: 341,
    123_456: 156,
}  # position -> window, of 1,000 with Grain's seed 7


class TokenLine:
    """The tokens of one part, in files that are opened as they are needed.

    They are read by position rather than mapped into memory: the system keeps the same pages either way, but what a
    volume does not give is then an error and not the signal SIGBUS, and nothing else of the process waits for it.
    """

    def __init__(self, folder: Path, index: Index, part: Part) -> None:
        self._folder, self._shards = folder, part.shards
        self._dtype = np.dtype(index.tokens.dtype).newbyteorder("<")
        self._vocabulary = index.tokens.vocabulary
        self._ends = list(accumulate(shard.tokens for shard in part.shards))
        self._opened: dict[int, int] = {}
        weakref.finalize(self, _close, self._opened)

    def __len__(self) -> int:
        return self._ends[-1]

    def windows(self, starts: Sequence[int], length: int) -> np.ndarray:
        """The tokens from each of `starts` on, [starts, length].

        Raises:
            EnvironmentUnfit: the volume does not give them. CheckFailed: one is no token, or a file ends before it.
        """
        found = np.empty((len(starts), length), self._dtype.newbyteorder("="))
        for start, window in zip(starts, found, strict=True):
            self._fill(start, window)
        if int(found.max()) >= self._vocabulary:
            raise CheckFailed(
                f"{self._folder}: a token {found.max():,} was read, needs one below {self._vocabulary:,}; jaxport data verify "
                f"{self._folder} says which file is damaged"
            )
        return found

    def _fill(self, start: int, window: np.ndarray) -> None:
        filled, size = 0, self._dtype.itemsize
        while filled < len(window):
            number = bisect_right(self._ends, start + filled)
            now = min(self._ends[number] - start, len(window)) - filled
            begins = self._ends[number] - self._shards[number].tokens
            content = self._read(number, (start + filled - begins) * size, now * size)
            window[filled : filled + now] = np.frombuffer(content, self._dtype)
            filled += now

    def _read(self, number: int, offset: int, count: int) -> bytes:
        path = self._folder / self._shards[number].file
        try:
            if number not in self._opened:
                self._opened[number] = os.open(path, os.O_RDONLY)
            content = os.pread(self._opened[number], count, offset)
        except OSError as error:
            raise EnvironmentUnfit(f"{path}: cannot be read: {describe_cause(error)}") from error
        if len(content) < count:
            raise CheckFailed(
                f"{path}: ends at {offset + len(content):,} bytes, needs more; copy it again or prepare the text again"
            )
        return content


def _close(descriptors: dict[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


@dataclass(frozen=True, eq=False)
class ShardData(Dataset):
    """Two lines of tokens. Windows hold context + 1 of them."""

    info: DataInfo
    train: TokenLine
    validation: TokenLine
    context: int
    tokenizer: str

    def batch(self, seed: int, step: int, rows: int, own: slice = EVERY) -> dict[str, np.ndarray]:
        """Unsigned integers "tokens" [rows, context + 1]: inputs and, one to the right, targets."""
        starts = [number * self.context for number in self.windows(seed, step, rows, own)]
        return {"tokens": self.train.windows(starts, self.context + 1)}

    def windows(self, seed: int, step: int, rows: int, own: slice = EVERY) -> list[int]:
        """Which windows of the training part a batch holds, by number. Position by position the order goes on through
        the epochs, each in an order of its own."""
        order = window_order(windows_of(len(self.train), self.context), seed)
        return [order[position] for position in range(step * rows, (step + 1) * rows)[own]]

    def evaluation(self, part: str) -> dict[str, np.ndarray]:
        """Unsigned integers "tokens" [batches, rows, context + 1], spread evenly over "train" or "validation"."""
        line = self.train if part == "train" else self.validation
        starts = evaluation_starts(len(line), self.context)
        windows = line.windows(starts.ravel().tolist(), self.context + 1)
        return {"tokens": windows.reshape(*starts.shape, -1)}

    def baselines(self) -> dict[str, Baseline]:
        """Of bytes, their bigram model, as for text that is held in memory, counted on the first 16 MiB."""
        return {"val_bits_per_byte": Baseline("byte bigram", self._bigram)} if self.tokenizer == BYTES else {}

    @cached_property
    def _bigram(self) -> float:
        (counted,) = self.train.windows([0], min(len(self.train), _BASELINE_TOKENS))
        return bigram_bits_per_byte(counted, self.evaluation("validation")["tokens"])


def open_shards(folder: Path, context: int, vocabulary: int = 256) -> ShardData:
    """Opens what `jaxport data prepare` made. The digests of a folder below VERIFIED_BYTES are checked, of a larger one
    sizes alone.

    Raises:
        CheckFailed: a file is missing or damaged. EnvironmentUnfit: one cannot be read. UsageError: a part is shorter
        than a window, or the model's vocabulary smaller than that of the shards.
    """
    index = read_index(folder)
    if index.tokens.vocabulary > vocabulary:
        raise UsageError(
            f"--data {folder}: a vocabulary of {index.tokens.vocabulary:,}, and the task has one of {vocabulary:,}; train another "
            "--model, or prepare the text with a smaller tokenizer"
        )
    whole = sum(map(index.bytes_of, index.shards))
    (check_digests if whole <= VERIFIED_BYTES else check_sizes)(folder, index)
    for name, part in (("train", index.train), ("validation", index.validation)):
        if part.tokens <= context:
            raise UsageError(
                f"--data {folder}: found {part.tokens:,} tokens in the {name} part, needs more than {context} for windows of "
                "that many; prepare more text or another --validation-fraction"
            )
    tokens = tokenization(index)
    info = DataInfo(
        name=str(folder),
        sha256=index.sha256,
        bytes=index.text.bytes,
        train=f"{index.train.tokens:,} tokens in {windows_of(index.train.tokens, context):,} windows",
        validation=f"{index.validation.tokens:,} tokens",
        tokens=tokens,
        tokenizer=b"" if tokens is None else read_tokenizer(folder, tokens.sha256),
    )
    return ShardData(
        info,
        TokenLine(folder, index, index.train),
        TokenLine(folder, index, index.validation),
        context,
        index.tokens.tokenizer,
    )


def windows_of(tokens: int, context: int) -> int:
    """How many windows a part has. Of 2**16 + 1, 2**18 + 1, ... the last is left out: Grain's order of so many has one
    of them twice and another never."""
    count = (tokens - 1) // context
    power = count - 1
    return count - (power >= 2**16 and power.bit_count() == 1)


@lru_cache(maxsize=4)
def window_order(count: int, seed: int) -> Any:
    """Position -> window, endlessly: each run of `count` positions is a permutation of the windows.

    Grain's seed is drawn: those beside each other would have each other's epochs, one later. Raises CheckFailed where
    the installed Grain gives another order than the one that runs began with.
    """
    _require_known_order()
    return _order(count, int(draw(seed, 0, 1, below=2**32)[0]))


def _order(count: int, seed: int) -> Any:
    import grain  # a seventh of a second, for those who train on shards

    return grain.MapDataset.range(count).shuffle(seed=seed).repeat()


def _require_known_order() -> None:
    from importlib.metadata import version

    order = _order(1000, 7)
    if {position: order[position] for position in _KNOWN} != _KNOWN:
        raise CheckFailed(
            f"grain {version('grain')} shuffles in another order than grain {_WRITTEN_FOR}, which jaxport was written for: a run "
            "would not go on with the data it began with; install that one"
        )
