"""What JAX can prove of symbols under their constraints: between which numbers a dimension lies."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.export

from converters.dims import all_hold, size
from converters.dims import symbols as dim_symbols

# Different sizes, each of which costs a few compiles.
MOST_TRIED = 4
# Past it a bound says nothing that anybody could use.
FARTHEST = 1 << 40

Bounds = tuple[int | None, int | None]


def bounds(dims: Iterable[str], constraints: Sequence[str]) -> dict[str, Bounds]:
    """(least, most) of each dimension, None where JAX proves none."""
    scope = jax.export.SymbolicScope(tuple(constraints))
    found = {}
    for text in dict.fromkeys(dims):
        (dim,) = jax.export.symbolic_shape(text, scope=scope)
        least = _last(lambda n, dim=dim: _proven(lambda: dim >= n))
        most = _last(lambda n, dim=dim: _proven(lambda: dim <= -n))
        found[text] = (least, None if most is None else -most)
    return found


def _last(proven: Callable[[int], bool]) -> int | None:
    """The largest number that is proven; None where no number is, as it has to hold for all smaller ones."""
    low = -FARTHEST
    if not proven(low):
        return None
    high = FARTHEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if proven(middle) else (low, middle)
    return low


def _proven(compare: Callable[[], Any]) -> bool:
    try:
        return bool(compare())
    except Exception as error:
        if type(error).__name__ != "InconclusiveDimensionOperation":
            raise
        return False


def tried(
    example: Mapping[str, int], found: Mapping[str, Bounds], constraints: Sequence[str]
) -> list[dict[str, int]]:
    """The sizes that a program is proven at where none are declared: those of the example, the least of each symbol,
    one more than that, and one more than the example's; as far as the constraints allow.
    """
    least = {name: max(found[name][0] or 1, 1) for name in example}
    choices = [
        dict(example),
        least,
        {n: s + 1 for n, s in least.items()},
        {n: s + 1 for n, s in example.items()},
    ]
    for name in example:  # one at a time, where they constrain each other
        choices += [{**example, name: least[name]}, {**example, name: example[name] + 1}]
    kept: list[dict[str, int]] = []
    for choice in choices:
        if choice not in kept and all_hold(constraints, choice) and _within(choice, found):
            kept.append(choice)
    return kept[:MOST_TRIED]


def _within(choice: Mapping[str, int], found: Mapping[str, Bounds]) -> bool:
    """Every dimension is at least 1 and no more than is proven of it."""
    values = {dim: size(dim, choice) for dim in found if dim_symbols(dim) <= choice.keys()}
    return all(value >= 1 and value <= (found[dim][1] or value) for dim, value in values.items())
