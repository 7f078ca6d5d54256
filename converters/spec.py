"""What the caller of an export says of a function: its inputs, its outputs, an example."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import ml_dtypes  # noqa: F401  (registers bfloat16 and its kin as numpy dtype names)
import numpy as np

from converters.errors import BadSpec
from converters.manifest import SequenceSpec, TensorInfo

PACKED = frozenset(
    {"int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}
)


@dataclass(frozen=True)
class TensorSpec:
    """One input: a numpy dtype name, and a shape whose first dimension is the batch: TensorSpec("float32", "b, 4").

    The second may be the symbol of a SequenceSpec: TensorSpec("int32", "b, t").
    """

    dtype: str
    shape: str


@dataclass(frozen=True)
class SignatureSpec:
    """One function to export and what it takes and gives; `export_bundle` has the meaning of each."""

    fn: Callable[..., Any]
    inputs: Mapping[str, TensorSpec]
    outputs: Sequence[str]
    example: Mapping[str, Any]
    sequence: SequenceSpec | None = None
    pad: Mapping[str, float] | None = None


@dataclass(frozen=True)
class ExportSpec:
    """A model as `jaxport export --fn package.module:name` finds it: what to export, and how to read its checkpoint.

    signatures: one, which is "predict", or several by name. params: what the functions take, as a pytree of arrays or
    ShapeDtypeStructs (jax.eval_shape): the checkpoint's arrays are put into it, by name; None takes the checkpoint's own
    dicts and lists. restore: picks the params out of what the checkpoint holds, as lambda saved: saved["model"].
    usage: strings for clients.
    """

    signatures: SignatureSpec | Mapping[str, SignatureSpec]
    params: Any = None
    restore: Callable[[Any], Any] | None = None
    usage: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Example:
    """Rows to take inputs from, by input name; every array has the same number of rows.

    along: names of those whose second dimension is the sequence.
    """

    arrays: Mapping[str, np.ndarray]
    along: frozenset[str] = frozenset()

    @property
    def rows(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batch(self, size: int) -> dict[str, np.ndarray]:
        """`size` rows, all different as far as the example allows: what repeats is shifted or scaled."""
        return {name: _stretch(array, size) for name, array in self.arrays.items()}

    def at_length(self, length: int) -> "Example":
        """The same rows with sequences of `length`: cut, or begun anew where they end."""
        return Example(
            {
                name: np.take(array, np.arange(length) % array.shape[1], axis=1)
                if name in self.along
                else array
                for name, array in self.arrays.items()
            },
            self.along,
        )


def parse_inputs(
    inputs: Mapping[str, TensorSpec], sequence: SequenceSpec | None = None
) -> tuple[str, tuple[TensorInfo, ...]]:
    """(batch symbol, inputs). BadSpec where a dtype is unknown, the batch is not the first dimension of each, or
    another is neither fixed nor the sequence.
    """
    if not inputs:
        raise BadSpec("inputs: none are given; name at least one, as in {'x': TensorSpec('float32', 'b, 4')}")
    if sequence is not None:
        _check_sequence(sequence)
    parsed = tuple(_parse(name, spec, sequence) for name, spec in inputs.items())
    symbols = {t.shape[0] for t in parsed}
    if len(symbols) != 1:
        raise BadSpec(
            f"inputs: the first dimensions are {sorted(map(str, symbols))}; one batch symbol is needed"
        )
    symbol = str(symbols.pop())
    if sequence is not None and not any(t.shape[1:2] == (sequence.symbol,) for t in parsed):
        raise BadSpec(
            f"sequence: no input has {sequence.symbol!r} as its second dimension, as in "
            f"{f'b, {sequence.symbol}'!r}; name it there, or leave sequence= out"
        )
    if sequence is not None and symbol == sequence.symbol:
        raise BadSpec(f"sequence: {symbol!r} is the batch; give the sequence another symbol")
    return symbol, parsed


def _check_sequence(sequence: SequenceSpec) -> None:
    if not sequence.symbol.isidentifier():
        raise BadSpec(f"sequence: symbol {sequence.symbol!r}; a name is needed, as t in 'b, t'")
    if not isinstance(sequence.most, int) or isinstance(sequence.most, bool) or sequence.most < 1:
        raise BadSpec(
            f"sequence: most is {sequence.most!r}; the longest that the function takes, at least 1, is needed"
        )


def parse_pad(inputs: Sequence[TensorInfo], pad: Mapping[str, float]) -> dict[str, float]:
    """The value that fills what no request asked for, by input name: 0 where `pad` has none. BadSpec."""
    unknown = set(pad) - {t.name for t in inputs}
    if unknown:
        raise BadSpec(f"pad: {min(unknown)!r} is no input; the inputs are {sorted(t.name for t in inputs)}")
    for tensor in inputs:
        value = pad.get(tensor.name, 0)
        if not isinstance(value, int | float) or not math.isfinite(value) or not _holds(tensor.dtype, value):
            raise BadSpec(f"pad: {value!r} for {tensor}; a number that {tensor.dtype} holds is needed")
    return {t.name: pad.get(t.name, 0) for t in inputs}


def _holds(dtype: str, value: float) -> bool:
    try:
        with np.errstate(all="ignore"):
            held = np.array(value).astype(np.dtype(dtype))
    except (ValueError, OverflowError):
        return False
    return bool(np.isfinite(held)) if held.dtype.kind not in "iub" else bool(held == value)


def _parse(name: str, spec: TensorSpec, sequence: SequenceSpec | None) -> TensorInfo:
    if not name.isidentifier():
        raise BadSpec(
            f"input {name!r}: the name must be a Python identifier, as the function takes it by keyword"
        )
    dims = tuple(int(d) if d.isdigit() else d for d in (part.strip() for part in spec.shape.split(",")) if d)
    if not dims or not isinstance(dims[0], str) or not dims[0].isidentifier():
        raise BadSpec(f"input {name!r}: shape {spec.shape!r}; the batch symbol must come first, as in 'b, 4'")
    symbol = None if sequence is None else sequence.symbol
    for at, dim in enumerate(dims[1:], 1):
        if (isinstance(dim, int) and dim >= 1) or (at == 1 and dim == symbol):
            continue
        cure = "sizes after the batch must be fixed"
        if at == 1 and str(dim).isidentifier():
            cure += (
                f", or declared: sequence=SequenceSpec({dim!r}, most=...) where padding behind a row's end is safe"
                if sequence is None
                else f", or be the sequence {symbol!r}"
            )
        raise BadSpec(f"input {name!r}: dimension {dim!r} in {spec.shape!r}; {cure}")
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


def parse_example(
    inputs: Sequence[TensorInfo], example: Mapping[str, object], sequence: SequenceSpec | None = None
) -> Example:
    """Checks the example against the inputs; BadSpec names the array that does not fit."""
    symbol = None if sequence is None else sequence.symbol
    along = frozenset(t.name for t in inputs if symbol in t.shape)
    if set(example) != {t.name for t in inputs}:
        raise BadSpec(f"example: has {sorted(example)}, the inputs are {sorted(t.name for t in inputs)}")
    arrays = {}
    for tensor in inputs:
        array = np.asarray(example[tensor.name])
        fits = (
            array.ndim == len(tensor.shape)
            and len(array) > 0
            and all(
                has == size or size == symbol
                for has, size in zip(array.shape[1:], tensor.shape[1:], strict=True)
            )
        )
        if not fits or array.dtype.name != tensor.dtype:
            raise BadSpec(
                f"example {tensor.name!r}: is {array.dtype}{list(array.shape)}, the input is {tensor}"
            )
        arrays[tensor.name] = array
    if len({len(a) for a in arrays.values()}) != 1:
        raise BadSpec(f"example: arrays have {[len(a) for a in arrays.values()]} rows; one number is needed")
    lengths = {arrays[name].shape[1] for name in along}
    if sequence is not None and (len(lengths) != 1 or not 1 <= min(lengths) <= sequence.most):
        raise BadSpec(
            f"example: {symbol!r} is {sorted(lengths)}; one length is needed, from 1 to {sequence.most}"
        )
    return Example(arrays, along)


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
