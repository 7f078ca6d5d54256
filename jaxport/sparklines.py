"""A curve as text: a few lines of block characters."""

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def spread(points: Sequence[tuple[int, float]], width: int, last: int) -> list[float | None]:
    """The value at each of `width` places from 0 to `last`: that of the last point up to there, None outside of them.

    points: (x, value), by rising x.
    """
    values: list[float | None] = []
    place, held = 0, None
    for column in range(1, width + 1):
        here = column * last / width
        while place < len(points) and points[place][0] <= here:
            held = points[place][1]
            place += 1
        values.append(None if place == len(points) and here - last / width >= points[-1][0] else held)
    return values


def chart(values: Sequence[float | None], height: int, low: float, high: float) -> list[str]:
    """Lines from the top: from `low` (an eighth of the lowest line) to `high` (all `height` lines full)."""
    span = high - low or 1.0
    eighths = [0 if value is None else 1 + round((value - low) / span * (8 * height - 1)) for value in values]
    return [
        "".join(_EIGHTHS[min(8, max(0, filled - 8 * line))] for filled in eighths)
        for line in reversed(range(height))
    ]
