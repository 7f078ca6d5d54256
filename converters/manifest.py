"""manifest.json as values: what a bundle is, takes, gives and weighs.

The file is written once by an export and read by everyone else. docs/bundle-format.md has the fields;
this module is the only one that knows their JSON.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from converters.errors import BundleError

SCHEMA_VERSION = 1
# Those of numpy's arrays; and what one size of them may be.
MOST_DIMENSIONS = 64
LARGEST_SIZE = 2**63 - 1


@dataclass(frozen=True)
class TensorInfo:
    """One input or output: numpy dtype name, and a shape whose symbols are strings: ("b", 256)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Signature:
    """One callable program of the bundle; `pad` has the value that fills a bucket, per input."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    batch_symbol: str
    constraints: tuple[str, ...]
    pad: Mapping[str, float]
    program_sha256: str

    @property
    def program(self) -> str:
        """Path of the program inside the bundle."""
        return f"programs/{self.name}.jaxexport"

    @property
    def golden(self) -> str:
        """Path of the goldens inside the bundle."""
        return f"golden/{self.name}.npz"


@dataclass(frozen=True)
class WeightSpec:
    """One weight; `sha256` is of its row-major little-endian bytes, whatever file holds them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Tolerance:
    """|got - want| <= atol + rtol * |want|. `wrong` is how far a wrong result lands: it exceeds atol."""

    atol: float
    rtol: float
    wrong: float


@dataclass(frozen=True)
class FileDigest:
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """Everything known about a bundle before a byte of its program is parsed."""

    model: str
    created_at: str
    provenance: Mapping[str, Any]
    jax_version: str
    jaxlib_version: str
    serialization_version: int
    calling_convention: int
    stablehlo_version: str
    window_ends: str
    platforms: tuple[str, ...]
    nr_devices: int
    matmul_precision: str
    signatures: Mapping[str, Signature]
    weights: tuple[WeightSpec, ...]
    tolerances: Mapping[str, Mapping[str, Tolerance]]  # platform -> "signature/output" -> tolerance
    usage: Mapping[str, str]
    files: Mapping[str, FileDigest]
    schema_version: int = field(default=SCHEMA_VERSION)

    def to_json(self) -> str:
        return json.dumps({"schema_version": self.schema_version, **asdict(self)}, indent=2) + "\n"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as stored, before any device's padding."""
        return sum(digest.bytes for name, digest in self.files.items() if name.startswith("weights/"))

    @property
    def swap_key(self) -> str:
        """Equal for two versions that differ in nothing but the values of their weights."""
        programs = {
            name: (s.program_sha256, [asdict(t) for t in (*s.inputs, *s.outputs)], dict(s.pad))
            for name, s in sorted(self.signatures.items())
        }
        weights = [(w.name, w.dtype, w.shape) for w in self.weights]
        return hashlib.sha256(json.dumps([programs, weights]).encode()).hexdigest()


def parse_manifest(data: bytes, source: str) -> Manifest:
    """Reads manifest.json's bytes; BundleError names `source` and the field that is not understood."""
    try:
        raw = json.loads(data)
        version = raw["schema_version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BundleError(f"{source}: not a manifest ({error})") from None
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{source}: schema_version is {version}, this jaxport reads {SCHEMA_VERSION}; "
            "read it with the jaxport that wrote it, or export again"
        )
    try:
        return _manifest(raw)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BundleError(f"{source}: a field is missing or malformed ({error!r})") from None


def _manifest(raw: dict[str, Any]) -> Manifest:
    fields = dict(raw)
    for name in raw["files"]:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"file name {name!r} leaves the bundle")
    date.fromisoformat(raw["window_ends"])
    for key in ("provenance", "usage", "tolerances"):
        fields[key] = dict(raw[key].items())
    fields["platforms"] = tuple(raw["platforms"])
    if not fields["platforms"] or not raw["signatures"]:
        raise ValueError("platforms and signatures may not be empty")
    fields["signatures"] = {name: _signature(value) for name, value in raw["signatures"].items()}
    fields["weights"] = tuple(WeightSpec(**{**w, "shape": _sizes(w["shape"], int)}) for w in raw["weights"])
    fields["tolerances"] = {
        platform: {output: _tolerance(**value) for output, value in outputs.items()}
        for platform, outputs in raw["tolerances"].items()
    }
    fields["files"] = {name: FileDigest(**value) for name, value in raw["files"].items()}
    for name, text in fields["usage"].items():
        if not isinstance(text, str):
            raise ValueError(f"usage {name!r} is no text")
    return Manifest(**fields)


def _signature(raw: dict[str, Any]) -> Signature:
    tensors = {
        key: tuple(TensorInfo(t["name"], t["dtype"], _sizes(t["shape"], int | str)) for t in raw[key])
        for key in ("inputs", "outputs")
    }
    return Signature(**{**raw, **tensors, "constraints": tuple(raw["constraints"])})


def _sizes(shape: Any, kind: Any) -> tuple[Any, ...]:
    """The sizes of a shape, which are checked before anything multiplies them."""
    sizes = tuple(shape)
    if len(sizes) > MOST_DIMENSIONS:
        raise ValueError(f"a shape has {len(sizes)} dimensions, more than {MOST_DIMENSIONS}")
    for size in sizes:
        if not isinstance(size, kind) or isinstance(size, bool):
            raise ValueError(f"the size {str(size)[:40]!r} in a shape")
        if isinstance(size, int) and not 0 <= size <= LARGEST_SIZE:
            raise ValueError(f"the size {str(size)[:40]} in a shape")
    return sizes


def _tolerance(**raw: float) -> Tolerance:
    """What allows everything, infinity or no number, would let any answer pass."""
    tolerance = Tolerance(**raw)
    for number in (tolerance.atol, tolerance.rtol):
        if isinstance(number, bool) or not (math.isfinite(number) and number >= 0):
            raise ValueError(f"the tolerance {number!r}")
    return tolerance
