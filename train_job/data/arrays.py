"""Examples that fit in memory, as arrays with a row for each: all that a `Dataset` has to do, done."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from train_job.data.draws import EVERY, draw, spread
from train_job.errors import UsageError
from train_job.presets import Baseline, DataInfo, Dataset

_EVALUATION_ROWS = 512  # in a batch; of more, as many batches as they fill


@dataclass(frozen=True, eq=False)
class ArrayData(Dataset):
    """Arrays [n, ...] by name, cut in two in their given order; within a part all have the same n."""

    info: DataInfo
    train: Mapping[str, np.ndarray]
    validation: Mapping[str, np.ndarray]
    to_beat: Mapping[str, Baseline] = field(default_factory=dict)

    @classmethod
    def cut(
        cls,
        name: str,
        arrays: Mapping[str, np.ndarray],
        validation: int,
        unit: str = "rows",
        to_beat: Mapping[str, Baseline] | None = None,
    ) -> Self:
        """All but the last `validation` rows to train on, those to validate; rows are not shuffled.

        name, unit: for people. The fingerprint has a digest of every byte, so a run is resumed with the same alone.

        Raises:
            UsageError: the arrays differ in rows, or leave none for one of the parts.
        """
        found = {key: np.ascontiguousarray(values) for key, values in arrays.items()}
        sizes = {key: len(values) for key, values in found.items()}
        rows = min(sizes.values(), default=0)
        if len(set(sizes.values())) != 1 or not 0 < validation < rows:
            raise UsageError(
                f"{name}: found rows {sizes} and {validation} to validate, needs the same in all, and more"
            )
        info = DataInfo(
            name=name,
            sha256=_digest(found),
            bytes=sum(values.nbytes for values in found.values()),
            train=f"{rows - validation:,} {unit}",
            validation=f"{validation:,} {unit}",
        )
        first = rows - validation
        return cls(
            info,
            train={key: values[:first] for key, values in found.items()},
            validation={key: values[first:] for key, values in found.items()},
            to_beat=to_beat or {},
        )

    def batch(self, seed: int, step: int, rows: int, own: slice = EVERY) -> dict[str, np.ndarray]:
        """`rows` of the training part, drawn with replacement."""
        chosen = draw(seed, step, rows, below=_rows(self.train))[own]
        return {name: values[chosen] for name, values in self.train.items()}

    def evaluation(self, part: str) -> dict[str, np.ndarray]:
        """As many rows of either part as the validation part has, evenly spread over it: [batches, rows, ...].

        Up to 512 of them are one batch; of more, what does not fill a further batch is left out.
        """
        source = self.train if part == "train" else self.validation
        rows = min(_EVALUATION_ROWS, _rows(self.validation))
        batches = _rows(self.validation) // rows
        chosen = spread(batches * rows, below=_rows(source)).reshape(batches, rows)
        return {name: values[chosen] for name, values in source.items()}

    def baselines(self) -> dict[str, Baseline]:
        """What was given as `to_beat`."""
        return dict(self.to_beat)


def _rows(arrays: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(arrays.values())))


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
