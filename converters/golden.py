"""Golden inputs and outputs: how they are stored, and when an answer counts as the same.

npz alone loses bfloat16 (it reads back as |V2), so every array is its raw bytes, with dtype and shape in an
index beside them.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 and its kin as numpy dtype names)
import numpy as np

from converters import fields
from converters.errors import BundleError, GoldenMismatch
from converters.manifest import Tolerance

INDEX = "index"


@dataclass(frozen=True)
class Golden:
    """One batch: inputs, and what the source function answered under plain jit.

    length: of its sequences, where the signature has one; else 0. sizes: of its further symbols.
    """

    batch: int
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    length: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """For messages."""
        further = "".join(f" {name} {size}" for name, size in self.sizes.items())
        return f"batch {self.batch}" + (f" length {self.length}" if self.length else "") + further


def pack_goldens(goldens: Sequence[Golden]) -> bytes:
    """The goldens as the bytes of an npz."""
    arrays: dict[str, np.ndarray] = {}
    index: list[dict[str, Any]] = []
    for at, golden in enumerate(goldens):
        entry: dict[str, Any] = {"batch": golden.batch, "length": golden.length}
        if golden.sizes:
            entry["sizes"] = dict(golden.sizes)
        for side in ("inputs", "outputs"):
            entry[side] = {}
            for name, value in getattr(golden, side).items():
                key = f"{at}.{side}.{name}"
                arrays[key] = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
                entry[side][name] = {"key": key, "dtype": value.dtype.name, "shape": value.shape}
        index.append(entry)
    arrays[INDEX] = np.frombuffer(json.dumps(index).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def unpack_goldens(data: bytes, source: str) -> tuple[Golden, ...]:
    """Inverse of pack_goldens; BundleError names `source` when the bytes are not what it wrote."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            index = fields.items(json.loads(stored[INDEX].tobytes()), INDEX, empty=False)
            return tuple(_golden(stored, entry) for entry in index)
    # zipfile, zlib and numpy raise what they like of bytes that are none of theirs.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BundleError(f"{source}: not a golden file ({reason})") from None


def _golden(stored: Mapping[str, np.ndarray], entry: dict[str, Any]) -> Golden:
    sizes = fields.mapping(entry.get("sizes", {}), "sizes")
    return Golden(
        fields.whole(entry["batch"], "batch"),
        _arrays(stored, entry["inputs"]),
        _arrays(stored, entry["outputs"]),
        fields.whole(entry.get("length", 0), "length"),
        {name: fields.whole(size, name) for name, size in sizes.items()},
    )


def _arrays(stored: Mapping[str, np.ndarray], entries: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(stored[e["key"]].tobytes(), np.dtype(e["dtype"])).reshape(e["shape"])
        for name, e in entries.items()
    }


def is_exact(dtype: np.dtype) -> bool:
    """Integers and booleans have no tolerance."""
    return dtype.kind in "iub"


def worst_error(
    got: np.ndarray, want: np.ndarray, tolerance: Tolerance
) -> tuple[float, float, tuple[int, ...]]:
    """(error, allowed, index) at the element that is furthest outside, or nearest to, its tolerance.

    Both arrays have one shape. A NaN that was expected is no error; one that was not is infinite.
    """
    if want.size == 0:
        return 0.0, 0.0, ()
    # float64 holds every narrower type; complex numbers are compared by modulus.
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(same, 0.0, np.abs(a - b))
    difference = np.where(np.isnan(difference), np.inf, difference)
    if is_exact(want.dtype):
        allowed = np.zeros(want.shape)
    else:
        finite = np.where(np.isfinite(b), np.abs(b), 0.0)
        allowed = tolerance.atol + tolerance.rtol * finite
    index = np.unravel_index(np.argmax(difference - allowed), want.shape)
    return float(difference[index]), float(allowed[index]), tuple(int(i) for i in index)


def check_outputs(
    got: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    tolerances: Mapping[str, Tolerance],
    what: str,
) -> float:
    """The largest error as a share of what is allowed; GoldenMismatch where it is over 1.

    `tolerances` is by output name. `what` begins the message ("models/iris/3 predict batch 3 on cpu").
    """
    share = 0.0
    for name, expected in want.items():
        if name not in got:
            raise GoldenMismatch(f"{what}: output {name!r} is missing")
        value = np.asarray(got[name])
        if value.dtype != expected.dtype or value.shape != expected.shape:
            raise GoldenMismatch(
                f"{what}: output {name!r} is {value.dtype}{list(value.shape)}, "
                f"the golden has {expected.dtype}{list(expected.shape)}"
            )
        error, allowed, index = worst_error(value, expected, tolerances[name])
        if error > allowed:
            raise GoldenMismatch(
                f"{what}: output {name!r} is off by {error:.3g} at {list(index)}, "
                f"allowed {allowed:.3g}; got {value[index]}, the source function gave {expected[index]}"
            )
        if allowed:
            share = max(share, error / allowed)
    return share
