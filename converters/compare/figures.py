"""What a comparison finds, as plain data: the table, the page, the picture and --json are made of nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from converters.errors import BadSpec

SCHEMA = 1
LOW, HIGH = 10, 90  # percentiles of the calls


@dataclass(frozen=True)
class Asked:
    """What is measured, and for how long: `seconds` for each way and batch, spread over `rounds`.

    source: whether to import the function that the manifest names. tensorflow_python: an interpreter that has
    TensorFlow; "" is this one.
    """

    batches: tuple[int, ...] = (1, 4, 16, 64)
    seconds: float = 1.0
    rounds: int = 10
    signature: str = "predict"
    source: bool = True
    tensorflow_python: str = ""

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            raise BadSpec(
                f"--batches {','.join(map(str, self.batches))!r}: positive integers are needed, each once"
            )
        if not 0 < self.seconds <= 3600:
            raise BadSpec(f"--seconds {self.seconds:g}: more than 0 and at most 3600 are needed")
        if not 1 <= self.rounds <= 1000:
            raise BadSpec(f"--rounds {self.rounds}: 1 to 1000 are needed")


@dataclass(frozen=True)
class Cell:
    """One way at one batch. Times are of whole calls: host arrays in, host arrays out.

    first_call_s: to the first answer at this batch, compile included. low_ms, high_ms: the 10th and the 90th
    percentile of the calls. times_jit: the median as a multiple of jit's at this batch. tokens_per_s: None where a
    row is no sequence.
    """

    batch: int
    first_call_s: float
    calls: int
    median_ms: float
    low_ms: float
    high_ms: float
    rows_per_s: float
    tokens_per_s: float | None
    times_jit: float | None


@dataclass(frozen=True)
class WayFigures:
    """One way. reason: why it was not run, or None. load_s: to read what it runs, once.

    max_difference: from the source's answers in the goldens, over every output and golden. share_of_allowed: the worst
    error as a share of its tolerance. mismatch: where it is over 1, which output, where and by how much.
    """

    name: str
    what: str
    reason: str | None = None
    load_s: float | None = None
    max_difference: float | None = None
    share_of_allowed: float | None = None
    mismatch: str | None = None
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """sizes: bytes of the program, the weights and, where there is one, the SavedModel. tokens_per_row: None where a row
    is no sequence. machine: what it ran on, with the load beside it.
    """

    model: str
    version: int
    bundle: str
    signature: str
    created_at: str
    seconds: float
    rounds: int
    tokens_per_row: int | None
    sizes: Mapping[str, int]
    machine: Mapping[str, Any]
    ways: tuple[WayFigures, ...]

    @property
    def ran(self) -> tuple[WayFigures, ...]:
        return tuple(way for way in self.ways if way.reason is None)

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(cell.batch for cell in self.ran[0].cells)

    def as_json(self) -> dict[str, Any]:
        """The fields of --json."""
        return {"schema": SCHEMA, **asdict(self)}


def cell_of(
    batch: int, first_call: float, seconds: Sequence[float], jit: float | None, tokens_per_row: int | None
) -> Cell:
    """jit: the median of jit at this batch, in seconds; None where jit was not run."""
    low, median, high = (float(v) for v in np.percentile(seconds, (LOW, 50, HIGH)))
    rows = batch / median
    return Cell(
        batch=batch,
        first_call_s=first_call,
        calls=len(seconds),
        median_ms=median * 1e3,
        low_ms=low * 1e3,
        high_ms=high * 1e3,
        rows_per_s=rows,
        tokens_per_s=None if tokens_per_row is None else rows * tokens_per_row,
        times_jit=None if jit is None else median / jit,
    )
