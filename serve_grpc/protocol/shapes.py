"""Shapes as they came: whoever sent one may have sent millions of sizes, each as large as an integer gets."""

import math
from collections.abc import Sequence

from serve_grpc.errors import InvalidRequest

# numpy has arrays of no more. The product of a million sizes would keep the interpreter for hours.
MOST_DIMENSIONS = 64
MOST_SHOWN = 16


def elements(what: str, shape: Sequence[int]) -> int:
    """How many an array of this shape has. Raises InvalidRequest for a negative size and for too many dimensions."""
    if len(shape) > MOST_DIMENSIONS:
        raise InvalidRequest(f"{what} has {len(shape)} dimensions; needed: at most {MOST_DIMENSIONS}")
    if any(size < 0 for size in shape):
        raise InvalidRequest(f"{what} has shape {shown(shape)}; sizes may not be negative")
    return math.prod(shape)


def shown(shape: Sequence[int]) -> str:
    """A shape for a message: never a long one."""
    if len(shape) <= MOST_SHOWN:
        return str(list(shape))
    return f"[{', '.join(map(str, shape[:MOST_SHOWN]))}, ... {len(shape)} dimensions]"
