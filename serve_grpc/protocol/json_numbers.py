"""Numbers between JSON and a signature's dtype: nothing is wrapped, cut off or taken for something else.

Parsing and converting hold the interpreter's lock, so that a large body would stop every other request for as long
as it takes. Large ones are therefore handled in pieces, with a chance for other threads in between.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np

from converters.manifest import TensorInfo
from serve_grpc.errors import InvalidRequest
from serve_grpc.protocol import GivenTensor

ELEMENTS_AT_ONCE = 16384
# From here on the parser calls into Python for each number, where a waiting thread gets its turn.
LARGE_BYTES = 128 * 1024
# A number that is too large for a float is parsed as infinity too; only these two were written as such.
INFINITY, MINUS_INFINITY = float("inf"), float("-inf")
# Between these a decimal of nine digits is a whole number and an exact power of ten away from each other.
USUAL = (1e-12, 1e15)
POWERS = np.array([float(f"1e{power}") for power in range(23)])
# From those that always suffice to those that are unique whatever they say; shorter ones end in zeros then.
DIGITS = {"float32": (9, 8, 7, 6), "float16": (5, 4, 3), "bfloat16": (4, 3, 2)}
CONSTANTS = {"Infinity": INFINITY, "-Infinity": MINUS_INFINITY, "NaN": float("nan")}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InvalidRequest(f"the body has the key {twice[:80]!r} twice in one object; needed: once")
    return made


def _constant(text: str) -> float:
    return CONSTANTS[text]


SMALL = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
LARGE = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=_constant,
    parse_float=lambda text: float(text),
    parse_int=lambda text: int(text),
)


def parsed(body: bytes) -> Any:
    """The body's value. Raises InvalidRequest where it is no JSON, or nested too deep, or names a key twice."""
    decoder = SMALL if len(body) < LARGE_BYTES else LARGE
    try:
        return decoder.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deep") from None
    except ValueError:  # Python parses integers of so many digits only
        raise InvalidRequest("the body has an integer of more than 4,300 digits") from None


def has_json_form(dtype: np.dtype) -> bool:
    """Booleans, integers and real floats."""
    return dtype.kind in "biuf" or (dtype.kind == "V" and jnp.issubdtype(dtype, jnp.floating))


def tensor(info: TensorInfo, value: Any) -> GivenTensor:
    """Nested lists as the input's dtype. Raises InvalidRequest naming the input, the value and its position.

    The shape is as it came; whether it is the signature's is checked where that of every protocol is.
    """
    dtype = jnp.dtype(info.dtype)
    if not has_json_form(dtype):
        raise InvalidRequest(f"input {info.name!r} is {info.dtype}, which JSON cannot say; use gRPC")
    shape, flat = _flattened(info, value)
    convert = _floats if dtype.kind in "fV" else _whole
    blocks = [convert(info, dtype, shape, flat, start) for start in range(0, len(flat), ELEMENTS_AT_ONCE)]
    return GivenTensor(info.name, info.dtype, shape, b"".join(blocks))


def values(array: np.ndarray) -> list:
    """Nested lists for JSON: of a float its shortest decimal that gives the same bits back in its own dtype."""
    if array.dtype.kind in "biu" or array.dtype == np.float64:
        return array.tolist()
    return _shortest(array).tolist()


def _shortest(array: np.ndarray) -> np.ndarray:
    """float64 of the shortest decimals that round to the same values: 0.1, where float32's own is 0.10000000149011612.

    A decimal of few digits with a small exponent is one whole number divided or multiplied by an exact power of ten,
    and so the nearest float64: what Python then writes is that decimal. What is too large or small for this is rare.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # a NaN may be a signalling one
        wide = array.astype(np.float64)
        usual = (np.abs(wide) >= USUAL[0]) & (np.abs(wide) < USUAL[1])
        some = np.where(usual, wide, 1.0)
        exponent = np.floor(np.log10(np.abs(some))).astype(np.int64)
        found = wide
        holds = usual
        for digits in DIGITS.get(array.dtype.name, ()):
            shift = digits - 1 - exponent
            up, down = POWERS[np.clip(shift, 0, 22)], POWERS[np.clip(-shift, 0, 22)]
            decimal = np.rint(some * up / down) / up * down
            holds = holds & (decimal.astype(array.dtype) == array)
            found = np.where(holds, decimal, found)
        return found


def _flattened(info: TensorInfo, value: Any) -> tuple[tuple[int, ...], list[Any]]:
    shape: list[int] = []
    level = [value]
    while level and type(level[0]) is list:
        size = len(level[0])
        if len(shape) == len(info.shape):
            needed = ", ".join(map(str, info.shape))
            raise InvalidRequest(f"input {info.name!r} is nested deeper than [{needed}]")
        for at, each in enumerate(level):
            if type(each) is not list:
                raise _refused(info, shape, at, _named(each), f"a list of {size}, as the first")
            if len(each) != size:
                raise _refused(info, shape, at, f"a list of {len(each)}", f"{size}, as the first")
        shape.append(size)
        level = level[0] if len(level) == 1 else list(chain.from_iterable(level))
    return tuple(shape), level


def _whole(info: TensorInfo, dtype: np.dtype, shape: Sequence[int], flat: Sequence[Any], start: int) -> bytes:
    block = flat[start : start + ELEMENTS_AT_ONCE]
    kind = bool if dtype.kind == "b" else int
    _only_of(info, shape, block, start, {kind})
    try:
        return np.array(block, dtype).tobytes()
    except OverflowError:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        at = next(at for at, value in enumerate(block) if not low <= value <= high)
        _refuse(info, shape, start + at, block[at], f"{info.dtype}, {low} to {high}")


def _floats(
    info: TensorInfo, dtype: np.dtype, shape: Sequence[int], flat: Sequence[Any], start: int
) -> bytes:
    block = flat[start : start + ELEMENTS_AT_ONCE]
    _only_of(info, shape, block, start, {int, float})
    try:
        wide = np.array(block, np.float64)
    except OverflowError:
        at = next(at for at, value in enumerate(block) if type(value) is int and _overflows(value))
        _refuse(info, shape, start + at, block[at], info.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(dtype)
    back = narrow.astype(np.float64)
    if not np.isfinite(back).all():
        _check_infinite(info, shape, block, start, back)
    return narrow.tobytes()


def _check_infinite(
    info: TensorInfo, shape: Sequence[int], block: Sequence[Any], start: int, back: np.ndarray
) -> None:
    """Refuses what became infinite, or no number, without being written as that."""
    for at in np.flatnonzero(~np.isfinite(back)).tolist():
        value = block[at]
        written = value is INFINITY or value is MINUS_INFINITY or value != value
        if written and repr(float(back[at])) == repr(value):
            continue
        found = _named(value) if written or math.isfinite(value) else "a number past 1.8e308"
        raise _refused(info, shape, start + at, found, f"a number that {info.dtype} holds")


def _overflows(value: int) -> bool:
    try:
        float(value)
    except OverflowError:
        return True
    return False


def _only_of(
    info: TensorInfo, shape: Sequence[int], block: Sequence[Any], start: int, kinds: set[type]
) -> None:
    if set(map(type, block)) <= kinds:
        return
    at = next(at for at, value in enumerate(block) if type(value) not in kinds)
    _refuse(info, shape, start + at, block[at], info.dtype)


def _refuse(info: TensorInfo, shape: Sequence[int], at: int, value: Any, needed: str) -> NoReturn:
    raise _refused(info, shape, at, _named(value), needed)


def _refused(info: TensorInfo, shape: Sequence[int], at: int, found: str, needed: str) -> InvalidRequest:
    position = [int(i) for i in np.unravel_index(at, tuple(shape))] if shape else []
    return InvalidRequest(f"input {info.name!r} has {found} at {position}; needed: {needed}")


def _named(value: Any) -> str:
    """A JSON value for a message: never a long one."""
    if isinstance(value, dict):
        return 'bytes ({"b64": ...})' if value.keys() == {"b64"} else "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "an integer of more than 38 digits"
    return json.dumps(value)
