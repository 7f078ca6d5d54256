"""The rows that a caller gives to export with: what goldens and proofs take their inputs from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from converters.dims import size as size_of
from converters.dims import symbols
from converters.errors import BadSpec
from converters.manifest import SequenceSpec, TensorInfo


@dataclass(frozen=True)
class Example:
    """Rows to take inputs from, by input name; every array has the same number of rows.

    along: names of those whose second dimension is the sequence. shapes: the declared ones. sizes: what their symbols
    are here, the batch and the sequence aside.
    """

    arrays: Mapping[str, np.ndarray]
    along: frozenset[str] = frozenset()
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batch(self, size: int) -> dict[str, np.ndarray]:
        """`size` rows, all different as far as the example allows: what repeats is shifted or scaled."""
        return {name: _stretch(array, size) for name, array in self.arrays.items()}

    def at_length(self, length: int) -> "Example":
        """The same rows with sequences of `length`: cut, or begun anew where they end."""
        arrays = {
            name: _resized(array, 1, length) if name in self.along else array
            for name, array in self.arrays.items()
        }
        return replace(self, arrays=arrays)

    def at_sizes(self, sizes: Mapping[str, int]) -> "Example":
        """The same rows where the further symbols are `sizes`: cut, or begun anew where they end."""
        arrays = {}
        for name, array in self.arrays.items():
            for axis, dim in enumerate(self.shapes[name]):
                if symbols(dim) and symbols(dim) <= sizes.keys():
                    array = _resized(array, axis, size_of(dim, sizes))
            arrays[name] = array
        return replace(self, arrays=arrays, sizes=dict(sizes))


def parse_example(
    inputs: Sequence[TensorInfo], example: Mapping[str, object], sequence: SequenceSpec | None = None
) -> Example:
    """Checks the example against the inputs; BadSpec names the array that does not fit."""
    symbol = None if sequence is None else sequence.symbol
    along = frozenset(t.name for t in inputs if symbol in t.shape)
    if set(example) != {t.name for t in inputs}:
        raise BadSpec(f"example: has {sorted(example)}, the inputs are {sorted(t.name for t in inputs)}")
    arrays = {tensor.name: np.asarray(example[tensor.name]) for tensor in inputs}
    sizes = _sizes_of(inputs, arrays, symbol)
    for tensor in inputs:
        array = arrays[tensor.name]
        fits = array.ndim == len(tensor.shape) and len(array) > 0 and _fits(tensor, array, sizes, symbol)
        if not fits or array.dtype.name != tensor.dtype:
            here = "".join(f", and {name} is {size}" for name, size in sizes.items())
            raise BadSpec(
                f"example {tensor.name!r}: is {array.dtype}{list(array.shape)}, the input is {tensor}{here}"
            )
    if len({len(a) for a in arrays.values()}) != 1:
        raise BadSpec(f"example: arrays have {[len(a) for a in arrays.values()]} rows; one number is needed")
    lengths = {arrays[name].shape[1] for name in along}
    if sequence is not None and (len(lengths) != 1 or not 1 <= min(lengths) <= sequence.most):
        raise BadSpec(
            f"example: {symbol!r} is {sorted(lengths)}; one length is needed, from 1 to {sequence.most}"
        )
    return Example(arrays, along, {t.name: t.shape for t in inputs}, sizes)


def _fits(tensor: TensorInfo, array: np.ndarray, sizes: Mapping[str, int], symbol: str | None) -> bool:
    return all(
        dim == symbol or (symbols(dim) <= sizes.keys() and size_of(dim, sizes) == has)
        for has, dim in zip(array.shape[1:], tensor.shape[1:], strict=True)
    )


def _sizes_of(
    inputs: Sequence[TensorInfo], arrays: Mapping[str, np.ndarray], sequence: str | None
) -> dict[str, int]:
    """What the further symbols are in the example. Those of a dimension like 2*k are tried out."""
    pairs = [
        (dim, has) for t in inputs for dim, has in zip(t.shape[1:], arrays[t.name].shape[1:], strict=False)
    ]
    sizes: dict[str, int] = {}
    for dim, has in sorted(pairs, key=lambda pair: len(str(pair[0]))):
        unknown = symbols(dim) - sizes.keys() - {sequence}
        if len(unknown) == 1:
            (name,) = unknown
            found = (n for n in range(1, has + 2) if size_of(dim, {**sizes, name: n}) == has)
            sizes[name] = has if dim == name else next(found, 0)
    return {name: size for name, size in sizes.items() if size}


def _resized(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    return np.take(array, np.arange(size) % array.shape[axis], axis=axis)


def _stretch(array: np.ndarray, size: int) -> np.ndarray:
    rows = [array[:size]]
    for turn in range(1, -(-size // len(array))):
        rows.append(_vary(array, turn))
    return np.ascontiguousarray(np.concatenate(rows)[:size])


def _vary(array: np.ndarray, turn: int) -> np.ndarray:
    """Other rows of the same kind: values that are sizes or ids keep their range, so they only move."""
    if array.ndim > 1:
        return np.roll(array, turn, axis=-1)
    if array.dtype.kind in "iub":
        return np.roll(array, turn)
    return (array * (1 + turn / 8)).astype(array.dtype)
