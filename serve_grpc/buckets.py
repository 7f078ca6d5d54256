"""Which batch sizes are worth running, from what they cost on this device."""

from collections.abc import Mapping
from dataclasses import dataclass

# What a measurement leaves out is paid per run, not per row: handing a batch over, waking the transport, the interpreter
# lock (4-64-64-3 MLP, 2 cores: about 100 us). It is why a run of many rows serves more than its seconds say.
HAND_OVER_SECONDS = 1e-4
LEAST_GAIN = 1.03  # over every smaller bucket in use, to count as adding throughput
ABOUT_THE_SAME = 0.8
BRISK_SHARE = 0.7  # of the best rate, that a batch has which is short because another model waits
BRISK_SECONDS = 0.02  # that a run may take while another model waits
TRIES = 3  # buckets in a row that may add nothing before larger ones are not tried


def candidates(max_batch: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to max_batch, which is always the last."""
    sizes = []
    size = 1
    while size < max_batch:
        sizes.append(size)
        size *= 2
    return (*sizes, max_batch)


def worth_using(seconds: Mapping[int, float]) -> dict[int, float]:
    """The buckets that add throughput to those before them. The smallest always stays.

    Where a row costs the same in any bucket, larger ones would only take longer: 64 rows that wait are served as fast
    by 64 runs, the first of them sooner, and without padding.

    seconds: bucket -> measured seconds of one run.
    """
    used: dict[int, float] = {}
    best = 0.0
    for bucket in sorted(seconds):
        rate = _served(bucket, seconds[bucket])
        if rate > best * LEAST_GAIN:
            used[bucket] = seconds[bucket]
            best = rate
    return used


def still_climbing(seconds: Mapping[int, float]) -> bool:
    """False once the last few buckets measured added nothing: larger ones will not either."""
    used = worth_using(seconds)
    return sum(bucket > max(used) for bucket in seconds) < TRIES


def _served(bucket: int, seconds: float) -> float:
    """Rows per second that full runs of a bucket serve."""
    return bucket / (seconds + HAND_OVER_SECONDS)


@dataclass(frozen=True)
class BucketChoice:
    """Tables over the number of rows n, 0 to the largest bucket, so that a batch costs one look-up.

    covering[n]: the smallest bucket that holds n rows. target[n]: the bucket to fill when n wait: the one
    that serves most of them at about the best rate of useful rows. 33 rows go as a full 32 and a 1 where cost grows
    with size, and as a padded 64 where it does not.

    seconds: of one run per bucket. row_seconds: of a row at the best rate. brisk: most rows of a batch while another
    model waits: a longer run would serve no more of them, or keeps the device for longer than BRISK_SECONDS.
    """

    covering: tuple[int, ...]
    target: tuple[int, ...]
    seconds: Mapping[int, float]
    row_seconds: float
    brisk: int

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
        target = tuple(_target(n, seconds) for n in rows)
        row_seconds = min(cost / bucket for bucket, cost in seconds.items())
        return cls(covering, target, dict(seconds), row_seconds, _brisk(seconds))


def _brisk(seconds: Mapping[int, float]) -> int:
    """The largest bucket that is over soon; the smallest good one when none is."""
    soon = [bucket for bucket, cost in seconds.items() if cost <= BRISK_SECONDS]
    if soon:
        return max(soon)
    rates = {bucket: bucket / cost for bucket, cost in seconds.items()}
    return min(bucket for bucket, rate in rates.items() if rate >= max(rates.values()) * BRISK_SHARE)


def _target(waiting: int, seconds: Mapping[int, float]) -> int:
    rates = {bucket: min(waiting, bucket) / cost for bucket, cost in seconds.items()}
    good = [bucket for bucket, rate in rates.items() if rate >= max(rates.values()) * ABOUT_THE_SAME]
    return max(good, key=lambda bucket: (min(waiting, bucket), -bucket))
