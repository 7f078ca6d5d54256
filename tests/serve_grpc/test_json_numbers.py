"""JSON to every dtype and back: exact, or refused by name and position."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from converters.manifest import TensorInfo
from serve_grpc.errors import InvalidRequest
from serve_grpc.protocol import json_numbers
from serve_grpc.protocol.json_numbers import parsed, tensor, values


def array_of(text: str, dtype: str, rank: int = 1) -> np.ndarray:
    info = TensorInfo("x", dtype, ("b", *["n"] * (rank - 1)))
    given = tensor(info, parsed(text.encode()))
    return np.frombuffer(given.data, jnp.dtype(dtype)).reshape(given.shape)


WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"]


@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_to_their_very_limits_and_not_past_them(dtype: str) -> None:
    limits = np.iinfo(dtype)
    assert array_of(f"[{limits.min}, 0, {limits.max}]", dtype).tolist() == [limits.min, 0, limits.max]
    for wrong in (limits.min - 1, limits.max + 1, 10**30):
        with pytest.raises(InvalidRequest, match=rf"'x' has {wrong} at \[1\]; needed: {dtype}, "):
            array_of(f"[0, {wrong}]", dtype)
    with pytest.raises(InvalidRequest, match="more than 38 digits"):
        array_of(f"[{10**60}]", dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_come_back_as_the_same_bits(dtype: str) -> None:
    bits = np.dtype(f"uint{8 * jnp.dtype(dtype).itemsize}")
    patterns = np.random.default_rng(3).integers(0, np.iinfo(bits).max, 2000, bits, endpoint=True)
    given = patterns.view(jnp.dtype(dtype))
    with np.errstate(invalid="ignore"):  # signalling NaNs among the patterns
        given = given[np.isfinite(given.astype(np.float64))]
    text = json.dumps(values(given))
    assert array_of(text, dtype).tobytes() == given.tobytes()


def test_a_float_is_written_as_short_as_its_own_dtype_allows() -> None:
    assert json.dumps(values(np.array([0.1, 1 / 3], np.float32))) == "[0.1, 0.33333334]"
    assert json.dumps(values(np.array([0.1, 65504], np.float16))) == "[0.1, 65500.0]"
    assert json.dumps(values(np.array([0.1, -3], jnp.bfloat16))) == "[0.1, -3.0]"
    numbers = np.random.default_rng(5).normal(scale=10.0 ** np.arange(-5, 6), size=(2000, 11))
    numbers = numbers.astype(np.float32).ravel()
    # numpy's own way to write one
    assert values(numbers) == [float(str(number)) for number in numbers]


def test_infinity_and_nan_are_written_out() -> None:
    text = "[NaN, Infinity, -Infinity]"
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        array = array_of(text, dtype)
        assert json.dumps(values(array)) == text
    with pytest.raises(InvalidRequest, match=r"has Infinity at \[0\]; needed: a number that float8_e4m3fn"):
        array_of("[Infinity]", "float8_e4m3fn")


@pytest.mark.parametrize(
    ("text", "dtype", "says"),
    [
        ("[1.5]", "int32", "1.5 at [0]"),
        ("[1.0]", "int32", "1.0 at [0]"),
        ("[1e2]", "int32", "100.0 at [0]"),
        ("[NaN]", "int32", "NaN at [0]"),
        ("[0, true]", "int32", "true at [1]"),
        ("[0.5, false]", "float32", "false at [1]"),
        ("[true, 1]", "bool", "1 at [1]"),
        ("[true, 0.0]", "bool", "0.0 at [1]"),
        ("[1, null]", "float32", "null at [1]"),
        ('[1, "2"]', "float32", "the string '2' at [1]"),
        ('[{"b64": "AA=="}]', "uint8", "bytes"),
        ('[{"a": 1}]', "float32", "an object at [0]"),
        ("[1, 1e39]", "float32", "1e+39 at [1]"),
        ("[1, 70000]", "float16", "70000 at [1]"),
        ("[1, 1e400]", "float64", "a number past 1.8e308 at [1]"),
        ("[Infinity, -1e400]", "float32", "a number past 1.8e308 at [1]"),
        (f"[1, {10**400}]", "float64", "an integer of more than 38 digits at [1]"),
        ("[1, [2]]", "float32", "a list of 1 at [1]"),
        ("[[1]]", "float32", "nested deeper than [b]"),
        ("[1]", "complex64", "JSON cannot say"),
    ],
)
def test_what_a_dtype_does_not_hold_is_refused_with_its_position(text: str, dtype: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        array_of(text, dtype)
    assert says in str(refused.value)
    assert "'x'" in str(refused.value)


def test_the_position_has_every_index() -> None:
    with pytest.raises(InvalidRequest, match=r"300 at \[1, 0, 2\]; needed: uint8, 0 to 255"):
        array_of("[[[1, 2, 3]], [[1, 2, 300]]]", "uint8", rank=3)
    with pytest.raises(InvalidRequest, match=r"a list of 1 at \[1\]; needed: 2, as the first"):
        array_of("[[1, 2], [1]]", "uint8", rank=2)
    with pytest.raises(InvalidRequest, match=r"has 7 at \[0, 1\]; needed: a list of 1"):
        array_of("[[[1], 7]]", "uint8", rank=3)


def test_a_scalar_and_an_empty_list_have_their_shapes() -> None:
    assert array_of("3", "int32").shape == ()
    assert array_of("[]", "int32").shape == (0,)
    assert array_of("[[], []]", "int32", rank=2).shape == (2, 0)


def test_a_large_body_is_handled_in_pieces_and_comes_out_the_same() -> None:
    numbers = np.random.default_rng(4).normal(size=(3, 3 * json_numbers.ELEMENTS_AT_ONCE // 2 + 1))
    text = json.dumps(numbers.tolist())
    assert len(text) > json_numbers.LARGE_BYTES
    assert array_of(text, "float64", rank=2).tobytes() == numbers.tobytes()
    at = json_numbers.ELEMENTS_AT_ONCE + 5
    wrong = text.replace(repr(float(numbers[1, at])), "null")
    with pytest.raises(InvalidRequest, match=rf"null at \[1, {at}\]"):
        array_of(wrong, "float64", rank=2)


@pytest.mark.parametrize("size", [10, json_numbers.LARGE_BYTES])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"a": 1,%s "a": 2}', "key 'a' twice"),
        (b"\xff%s", "no UTF-8 at byte 0"),
        (b"[1%s", "no JSON"),
        (b"%s" + b"[" * 200_000, "nested too deep"),
        (b"%s" + b'{"a":' * 100_000, "nested too deep"),
        (b"%s" + b"1" * 5000, "more than 4,300 digits"),
        (b"", "no JSON"),
    ],
)
def test_a_body_that_is_no_value(body: bytes, says: str, size: int) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parsed(body.replace(b"%s", b" " * size))
