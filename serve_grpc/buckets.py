"""Which batch sizes are worth running, from what they cost on this device."""

from collections.abc import Mapping
from dataclasses import dataclass

# Below this gain in rows per second a larger bucket only adds latency and padding.
LEAST_GAIN = 1.03


def candidates(max_batch: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to max_batch, which is always the last."""
    sizes = []
    size = 1
    while size < max_batch:
        sizes.append(size)
        size *= 2
    return (*sizes, max_batch)


def worth_using(seconds: Mapping[int, float]) -> dict[int, float]:
    """The buckets that add throughput over every smaller one. The smallest always stays.

    seconds: bucket -> measured seconds of one run.
    """
    used: dict[int, float] = {}
    best = 0.0
    for bucket in sorted(seconds):
        rate = bucket / seconds[bucket]
        if not used or rate > best * LEAST_GAIN:
            used[bucket] = seconds[bucket]
            best = rate
    return used


def still_climbing(seconds: Mapping[int, float]) -> bool:
    """False once the two largest buckets measured add nothing: larger ones will not either."""
    return not set(sorted(seconds)[-2:]).isdisjoint(worth_using(seconds))


@dataclass(frozen=True)
class BucketChoice:
    """Tables over the number of rows n, 0 to the largest bucket, so that a batch costs one look-up.

    covering[n]: the smallest bucket that holds n rows. target[n]: the bucket with the most useful rows per second
    when n wait: 33 rows go as a full 32 and a 1 where cost grows with size, and as a padded 64 where it does not.
    """

    covering: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def largest(self) -> int:
        """Rows of the largest bucket."""
        return len(self.covering) - 1

    @classmethod
    def of(cls, seconds: Mapping[int, float]) -> "BucketChoice":
        """The tables for the buckets in use, with their seconds per run."""
        buckets = sorted(seconds)
        rows = range(buckets[-1] + 1)
        covering = tuple(next(b for b in buckets if b >= n) for n in rows)
        target = tuple(max(buckets, key=lambda b: (min(n, b) / seconds[b], -b)) for n in rows)
        return cls(covering, target)
