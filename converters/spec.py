"""What the caller of an export says of a function: its inputs, its outputs, an example."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.export
import ml_dtypes  # noqa: F401  (registers bfloat16 and its kin as numpy dtype names)
import numpy as np

from converters.errors import BadSpec
from converters.manifest import TensorInfo

PACKED = frozenset(
    {"int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}
)


@dataclass(frozen=True)
class TensorSpec:
    """One input: a numpy dtype name, and a shape whose first dimension is the batch: TensorSpec("float32", "b, 4")."""

    dtype: str
    shape: str


@dataclass(frozen=True)
class Example:
    """Rows to take inputs from, by input name; every array has the same number of rows."""

    arrays: Mapping[str, np.ndarray]

    @property
    def rows(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batch(self, size: int) -> dict[str, np.ndarray]:
        """`size` rows, all different as far as the example allows: what repeats is shifted or scaled."""
        return {name: _stretch(array, size) for name, array in self.arrays.items()}


def parse_inputs(inputs: Mapping[str, TensorSpec]) -> tuple[str, tuple[TensorInfo, ...]]:
    """(batch symbol, inputs). BadSpec where a dtype is unknown or the batch is not the first dimension of each."""
    if not inputs:
        raise BadSpec("inputs: none are given; name at least one, as in {'x': TensorSpec('float32', 'b, 4')}")
    parsed = tuple(_parse(name, spec) for name, spec in inputs.items())
    symbols = {t.shape[0] for t in parsed}
    if len(symbols) != 1:
        raise BadSpec(
            f"inputs: the first dimensions are {sorted(map(str, symbols))}; one batch symbol is needed"
        )
    return str(symbols.pop()), parsed


def _parse(name: str, spec: TensorSpec) -> TensorInfo:
    if not name.isidentifier():
        raise BadSpec(
            f"input {name!r}: the name must be a Python identifier, as the function takes it by keyword"
        )
    dims = tuple(int(d) if d.isdigit() else d for d in (part.strip() for part in spec.shape.split(",")) if d)
    if not dims or not isinstance(dims[0], str) or not dims[0].isidentifier():
        raise BadSpec(f"input {name!r}: shape {spec.shape!r}; the batch symbol must come first, as in 'b, 4'")
    for dim in dims[1:]:
        if not isinstance(dim, int) or dim < 1:
            raise BadSpec(
                f"input {name!r}: dimension {dim!r} in {spec.shape!r}; sizes after the batch must be fixed"
            )
    what = f"input {name!r}"
    return TensorInfo(name, whole_bytes(what, np.dtype(check_dtype(what, spec.dtype))), dims)


def check_dtype(what: str, dtype: str) -> str:
    """The dtype's canonical name; BadSpec where JAX would not keep it."""
    try:
        known = np.dtype(dtype)
    except TypeError:
        raise BadSpec(
            f"{what}: dtype {dtype!r} is unknown; use numpy's name, as float32 or bfloat16"
        ) from None
    kept = jax.dtypes.canonicalize_dtype(known) if known.kind in "iufcbV" else None
    if kept != known:
        raise BadSpec(
            f"{what}: dtype {dtype!r} is not kept by JAX{f', it becomes {kept}' if kept else ''}; change it"
        )
    return known.name


def whole_bytes(what: str, dtype: np.dtype) -> str:
    """The dtype's name; BadSpec for those of less than a byte, which do not travel."""
    if dtype.name in PACKED:
        raise BadSpec(
            f"{what}: dtype {dtype.name} has less than a byte for an element; convert it to int8 or wider"
        )
    return dtype.name


def parse_example(inputs: Sequence[TensorInfo], example: Mapping[str, object]) -> Example:
    """Checks the example against the inputs; BadSpec names the array that does not fit."""
    if set(example) != {t.name for t in inputs}:
        raise BadSpec(f"example: has {sorted(example)}, the inputs are {sorted(t.name for t in inputs)}")
    arrays = {}
    for tensor in inputs:
        array = np.asarray(example[tensor.name])
        fits = array.ndim == len(tensor.shape) and array.shape[1:] == tensor.shape[1:] and len(array) > 0
        if not fits or array.dtype.name != tensor.dtype:
            raise BadSpec(
                f"example {tensor.name!r}: is {array.dtype}{list(array.shape)}, the input is {tensor}"
            )
        arrays[tensor.name] = array
    if len({len(a) for a in arrays.values()}) != 1:
        raise BadSpec(f"example: arrays have {[len(a) for a in arrays.values()]} rows; one number is needed")
    return Example(arrays)


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
