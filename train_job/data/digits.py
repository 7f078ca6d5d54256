"""The 1,797 handwritten digits that scikit-learn carries in its wheel (Alpaydin and Kaynak, 1998)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from train_job.data.arrays import ArrayData
from train_job.presets import Baseline, DataInfo

_VALIDATION_ROWS = 360  # the last fifth: other writers than the first


@dataclass(frozen=True, eq=False)
class DigitsData(ArrayData):
    """float32 "pixels" [n, 64] in [0, 1] and int32 "label" [n], cut in two in their given order."""

    def baselines(self) -> dict[str, Baseline]:
        """Always answering with the commonest class."""
        commonest = np.bincount(self.train["label"]).argmax()
        share = float(np.mean(self.validation["label"] == commonest))
        return {"val_accuracy": Baseline("commonest class", share)}


def read_digits() -> DigitsData:
    """Reads the bundled digits; needs no network."""
    from sklearn.datasets import load_digits  # seconds to import, and the zoo imports this module

    bunch: Any = load_digits()
    pixels = np.ascontiguousarray(bunch.data / 16.0, dtype=np.float32)
    label = np.ascontiguousarray(bunch.target, dtype=np.int32)
    first = len(label) - _VALIDATION_ROWS
    info = DataInfo(
        name="scikit-learn digits",
        sha256=hashlib.sha256(pixels.tobytes() + label.tobytes()).hexdigest(),
        bytes=pixels.nbytes + label.nbytes,
        train=f"{first:,} images",
        validation=f"{_VALIDATION_ROWS:,} images",
    )
    return DigitsData(
        info,
        train={"pixels": pixels[:first], "label": label[:first]},
        validation={"pixels": pixels[first:], "label": label[first:]},
    )
