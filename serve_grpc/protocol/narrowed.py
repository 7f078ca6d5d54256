"""Integers that travel in a wider type than they are of."""

import numpy as np

from serve_grpc.errors import InvalidRequest


def narrowed(what: str, values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in the smaller dtype that they stand for. Raises InvalidRequest for one that it does not have."""
    if values.dtype == dtype:
        return values
    limits = np.iinfo(dtype)
    wrong = (values < limits.min) | (values > limits.max)
    if wrong.any():
        at = int(wrong.argmax())
        raise InvalidRequest(
            f"{what} has the value {int(values[at])} at element {at}; needed: {dtype}, {limits.min} to {limits.max}"
        )
    return values.astype(dtype)
