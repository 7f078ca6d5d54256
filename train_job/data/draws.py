"""The one source of randomness in the data: a draw is a pure function of (seed, step)."""

from __future__ import annotations

import numpy as np

EVERY = slice(None)


def draw(seed: int, step: int, count: int, below: int) -> np.ndarray:
    """`count` int64 numbers in [0, below), the same for the same seed and step on every machine.

    Philox is keyed rather than advanced, so step 900 costs what step 0 costs and a resumed run needs no state.
    Its raw words, unlike `Generator.integers`, are fixed for all NumPy versions (NEP 19). The modulo's bias is
    below 2**-40 for any data that fits in memory.
    """
    words = np.random.Philox(key=np.array([seed, step], dtype=np.uint64)).random_raw(count)
    return (words % np.uint64(below)).astype(np.int64)


def spread(count: int, below: int) -> np.ndarray:
    """`count` int64 numbers evenly over [0, below): the fixed positions of an evaluation."""
    return (np.arange(count, dtype=np.int64) * below) // count
