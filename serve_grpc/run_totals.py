"""What the runs of one version add up to, by bucket, for protocols that report it."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from serve_grpc.ended import Run


class Totals(NamedTuple):
    """rows: padding aside. assembling, on_device and encoding: seconds, of all runs together."""

    runs: int = 0
    rows: int = 0
    assembling: float = 0.0
    on_device: float = 0.0
    encoding: float = 0.0

    def plus(self, runs: int, rows: int, assembling: float, on_device: float, encoding: float) -> "Totals":
        """With these added."""
        return Totals(
            self.runs + runs,
            self.rows + rows,
            self.assembling + assembling,
            self.on_device + on_device,
            self.encoding + encoding,
        )


class RunTotals:
    """Added to by the executor alone, read by any thread: each entry is replaced whole."""

    def __init__(self) -> None:
        self._by_bucket: dict[int, Totals] = {}
        self._last = 0.0  # time.monotonic()

    def add(self, run: Run) -> None:
        """One run."""
        _, rows, bucket, started, launched, fetched, answered = run
        before = self._by_bucket.get(bucket, _NONE)
        self._by_bucket[bucket] = before.plus(
            1, rows, launched - started, fetched - launched, answered - fetched
        )
        self._last = answered

    @property
    def by_bucket(self) -> Mapping[int, Totals]:
        """bucket -> its runs, ascending."""
        return dict(sorted(self._by_bucket.copy().items()))

    @property
    def total(self) -> Totals:
        """All buckets together."""
        total = _NONE
        for each in self._by_bucket.copy().values():
            total = total.plus(*each)
        return total

    @property
    def last_milliseconds(self) -> int:
        """When the last run was answered, since the epoch; 0: there was none."""
        return round((time.time() - time.monotonic() + self._last) * 1e3) if self._last else 0


_NONE = Totals()
