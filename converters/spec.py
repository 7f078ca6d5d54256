"""What the caller of an export says of a function: its inputs, its outputs, and what may vary in them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import ml_dtypes  # noqa: F401  (registers bfloat16 and its kin as numpy dtype names)
import numpy as np

from converters.dims import constraint_symbols, symbols
from converters.errors import BadSpec
from converters.manifest import MOST_BATCHES, MOST_LANES, MOST_ROWS, SequenceSpec, TensorInfo, combinations

PLACEHOLDER = re.compile(r"\.\.\.|\b_\b")

PACKED = frozenset(
    {"int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}
)


@dataclass(frozen=True)
class TensorSpec:
    """One input: a numpy dtype name, and a shape whose first dimension is the batch: TensorSpec("float32", "b, 4").

    The second may be the symbol of a SequenceSpec: TensorSpec("int32", "b, t"). Others are numbers, further symbols and
    what JAX makes of them, as "b, k, 2*k"; "_" and "..." stand for the sizes of the example.
    """

    dtype: str
    shape: str


@dataclass(frozen=True)
class SignatureSpec:
    """One function to export and what it takes and gives; `export_bundle` has the meaning of each.

    loss: it gives one number for the whole batch, to train by; no server serves it. vjp_order: as export_bundle's,
    which counts where this is None.
    """

    fn: Callable[..., Any]
    inputs: Mapping[str, TensorSpec]
    outputs: Sequence[str]
    example: Mapping[str, Any]
    sequence: SequenceSpec | None = None
    pad: Mapping[str, float] | None = None
    constraints: Sequence[str] = ()
    sizes: Mapping[str, Sequence[int]] | None = None
    loss: bool = False
    vjp_order: int | None = None
    fixed_batches: Sequence[int] | None = None


@dataclass(frozen=True)
class ExportSpec:
    """A model as `jaxport export --fn package.module:name` finds it: what to export, and how to read its checkpoint.

    signatures: one, which is "predict", or several by name. params: what the functions take, as a pytree of arrays or
    ShapeDtypeStructs (jax.eval_shape): the checkpoint's arrays are put into it, by name; None takes the checkpoint's own
    dicts and lists. restore: picks the params out of what the checkpoint holds, as lambda saved: saved["model"].
    usage: strings for clients. shardings: how params are cut where --mesh asks for several devices, as export_bundle's.
    """

    signatures: SignatureSpec | Mapping[str, SignatureSpec]
    params: Any = None
    restore: Callable[[Any], Any] | None = None
    usage: Mapping[str, str] | None = None
    shardings: Mapping[str, Sequence[Any]] | None = None


def parse_inputs(
    inputs: Mapping[str, TensorSpec],
    sequence: SequenceSpec | None = None,
    constraints: Sequence[str] = (),
    example: Mapping[str, Any] | None = None,
) -> tuple[str, tuple[TensorInfo, ...]]:
    """(batch symbol, inputs). example: has the sizes that "_" and "..." stand for.

    BadSpec where a dtype or a dimension is none that is known, the batch is not the first dimension of each and there
    alone, the sequence is anywhere but second, or a constraint is about either.
    """
    if not inputs:
        raise BadSpec("inputs: none are given; name at least one, as in {'x': TensorSpec('float32', 'b, 4')}")
    if sequence is not None:
        _check_sequence(sequence)
    scope = _scope(constraints)
    parsed = tuple(_parse(name, spec, sequence, scope, example or {}) for name, spec in inputs.items())
    batches = {t.shape[0] for t in parsed}
    if len(batches) != 1:
        raise BadSpec(
            f"inputs: the first dimensions are {sorted(map(str, batches))}; one batch symbol is needed"
        )
    symbol = str(batches.pop())
    if sequence is not None and not any(t.shape[1:2] == (sequence.symbol,) for t in parsed):
        raise BadSpec(
            f"sequence: no input has {sequence.symbol!r} as its second dimension, as in "
            f"{f'b, {sequence.symbol}'!r}; name it there, or leave sequence= out"
        )
    if sequence is not None and symbol == sequence.symbol:
        raise BadSpec(f"sequence: {symbol!r} is the batch; give the sequence another symbol")
    _check_symbols(symbol, parsed, sequence, constraints)
    return symbol, parsed


def free_symbols(inputs: Sequence[TensorInfo], batch: str, sequence: SequenceSpec | None) -> tuple[str, ...]:
    """The symbols beside the batch and the sequence, in the order of the inputs."""
    found = dict.fromkeys(each for t in inputs for dim in t.shape for each in sorted(symbols(dim)))
    return tuple(each for each in found if each not in (batch, sequence and sequence.symbol))


def _scope(constraints: Sequence[str]) -> Any:
    try:
        return jax.export.SymbolicScope(tuple(constraints))
    except ValueError as error:
        raise BadSpec(f"constraints: {list(constraints)} ({first_line(error)}); 'k >= 2' is one") from None


def _check_symbols(
    batch: str, inputs: Sequence[TensorInfo], sequence: SequenceSpec | None, constraints: Sequence[str]
) -> None:
    for tensor in inputs:
        if any(batch in symbols(dim) for dim in tensor.shape[1:]):
            raise BadSpec(f"input {tensor}: the batch {batch!r} may be its first dimension only")
    free = free_symbols(inputs, batch, sequence)
    for constraint in constraints:
        unknown = sorted(constraint_symbols(constraint) - set(free))
        if unknown:
            raise BadSpec(
                f"constraints: {constraint!r} is about {unknown[0]!r}; only symbols of the inputs beside the batch and "
                f"the sequence can have some, here {', '.join(free) or 'none'}"
            )


def parse_sizes(
    sizes: Mapping[str, Sequence[int]] | None,
    free: Sequence[str],
    constraints: Sequence[str],
    sequence: SequenceSpec | None,
) -> dict[str, tuple[int, ...]]:
    """What a server compiles of each further symbol, ascending. BadSpec, also for more combinations than it would."""
    if sizes is None:
        return {}
    if set(sizes) != set(free):
        raise BadSpec(
            f"sizes: has {sorted(sizes)}, the symbols beside the batch and the sequence are {sorted(free)}"
        )
    for name, values in sizes.items():
        if not values or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in values):
            raise BadSpec(f"sizes: {name!r} has {list(values)}; some sizes of at least 1 are needed")
    found = {name: tuple(sorted(set(sizes[name]))) for name in free}
    lanes = len(combinations(found, constraints)) * len(sequence.lengths if sequence else "1")
    if not 1 <= lanes <= MOST_LANES:
        raise BadSpec(
            f"sizes: they make {lanes} programs to compile under {list(constraints)}; 1 to {MOST_LANES} are served"
        )
    return found


def parse_batches(
    batches: Sequence[int] | None,
    free: Sequence[str] = (),
    sequence: SequenceSpec | None = None,
    other: str = "",
) -> tuple[int, ...]:
    """The only batches that a function is exported for, ascending; none of it takes any. other: what else is declared that
    needs any batch. BadSpec.
    """
    if batches is None:
        return ()
    if not batches or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in batches):
        raise BadSpec(
            f"fixed_batches: {list(batches)}; some numbers of rows from 1 are needed, as (1, 2, 4, 8)"
        )
    found = tuple(sorted(set(batches)))
    if found[-1] > MOST_ROWS:
        raise BadSpec(
            f"fixed_batches: {str(found[-1])[:40]} rows; at most {MOST_ROWS} are needed, since the export runs as many, and more "
            "are split over the largest"
        )
    if len(found) > MOST_BATCHES:
        raise BadSpec(
            f"fixed_batches: {len(found)} of them, each a program to compile; at most {MOST_BATCHES} are served"
        )
    beside = ["sequence="] * (sequence is not None) + [f"the symbol {name!r}" for name in free]
    if beside:
        raise BadSpec(
            f"fixed_batches: {', '.join(map(str, found))} beside {beside[0]}; where batches are fixed all sizes have to "
            "be: give numbers for the others, or leave fixed_batches out"
        )
    if other:
        raise BadSpec(
            f"fixed_batches: {', '.join(map(str, found))} beside {other}, which needs one program for any batch; leave one of "
            "the two out"
        )
    return found


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


def _parse(
    name: str, spec: TensorSpec, sequence: SequenceSpec | None, scope: Any, example: Mapping[str, Any]
) -> TensorInfo:
    if not name.isidentifier():
        raise BadSpec(
            f"input {name!r}: the name must be a Python identifier, as the function takes it by keyword"
        )
    like = np.shape(example[name]) if name in example and PLACEHOLDER.search(spec.shape) else None
    try:
        shape = jax.export.symbolic_shape(spec.shape.strip().rstrip(","), scope=scope, like=like)
    except (ValueError, TypeError) as error:
        raise BadSpec(f"input {name!r}: shape {spec.shape!r} ({first_line(error)})") from None
    dims = tuple(dim if isinstance(dim, int) else str(dim) for dim in shape)
    if not dims or not isinstance(dims[0], str) or not dims[0].isidentifier():
        raise BadSpec(f"input {name!r}: shape {spec.shape!r}; the batch symbol must come first, as in 'b, 4'")
    for at, dim in enumerate(dims[1:], 1):
        what = f"input {name!r}: dimension {dim!r} in {spec.shape!r}"
        if isinstance(dim, int) and dim < 1:
            raise BadSpec(f"{what}; at least 1 is needed")
        if sequence is not None and sequence.symbol in symbols(dim) and (at != 1 or dim != sequence.symbol):
            raise BadSpec(
                f"{what}; the sequence {sequence.symbol!r} may be the second dimension, and that only"
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


def first_line(error: BaseException) -> str:
    """What an error says, for the middle of a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
