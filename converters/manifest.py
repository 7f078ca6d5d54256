"""manifest.json as values: what a bundle is, takes, gives and weighs.

The file is written once by an export and read by everyone else. docs/bundle-format.md has the fields;
this module is the only one that knows their JSON.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from typing import Any

from converters.dims import all_hold, constraint_symbols, symbols
from converters.dims import size as size_of
from converters.errors import BundleError
from converters.window import Window, window_of

SCHEMA_VERSION = 1
# The batch of a program that takes any.
ANY_BATCH = 0
# Those of numpy's arrays; and what one size of them may be.
MOST_DIMENSIONS = 64
LARGEST_SIZE = 2**63 - 1
# How alike a row is among others: not recorded, bit for bit, or within the tolerances.
ROWS = ("", "bitwise", "tolerance")
# Lengths that rows are padded to: halves of the longest, so many at most, and none that saves next to nothing.
MOST_LENGTHS = 5
SHORTEST_LENGTH = 8
# Programs that a server compiles for one signature: its sizes, each at all of its lengths.
MOST_LANES = 16
# Batches that one signature may be exported for, each with a program of its own.
MOST_BATCHES = 16
# Why a server refuses a signature with further symbols that says nothing of them.
UNSIZED = "a server compiles every size before a request comes; export with sizes={...} for these symbols"


@dataclass(frozen=True)
class TensorInfo:
    """One input or output: numpy dtype name, and a shape whose symbols are strings: ("b", 256)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class SequenceSpec:
    """A second dimension of any length from 1 to `most`, by its symbol: SequenceSpec("t", most=256).

    It says that a row may be padded behind its end: what the outputs hold up to there does not change.
    """

    symbol: str
    most: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """What rows are padded to, ascending: `most`, and the powers of two below it."""
        lengths = [self.most]
        while len(lengths) < MOST_LENGTHS and lengths[-1] > SHORTEST_LENGTH:
            lengths.append(1 << (lengths[-1] - 1).bit_length() - 1)
        return tuple(reversed(lengths))


def combinations(
    sizes: Mapping[str, Sequence[int]], constraints: Sequence[str] = ()
) -> tuple[dict[str, int], ...]:
    """Every choice of a size for each symbol that the constraints allow; of no symbols the empty one."""
    chosen = (dict(zip(sizes, each, strict=True)) for each in itertools.product(*sizes.values()))
    return tuple(each for each in chosen if all_hold(constraints, each))


def at_batch(tensors: tuple[TensorInfo, ...], batch: int) -> tuple[TensorInfo, ...]:
    """The same with `batch` rows; of ANY_BATCH as they are."""
    return tensors if batch == ANY_BATCH else tuple(replace(t, shape=(batch, *t.shape[1:])) for t in tensors)


@dataclass(frozen=True)
class Signature:
    """One callable program of the bundle; `pad` has the value that fills a bucket, per input.

    sequence: the dimension behind the batch whose length a request chooses; None where there is none. rows: how alike a
    row was found among others: "bitwise" or "tolerance"; "" where that was not recorded. sizes: what a server compiles of
    the further symbols. bounds: what the further symbols, and dimensions made of them, are proven to lie between, with
    None for no bound. batches: the only batches that it has programs for, ascending; of none one program takes any.
    loss: it gives one number for the whole batch, for training: no server serves it. vjp_order: how often the program
    can be differentiated backwards.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    batch_symbol: str
    constraints: tuple[str, ...]
    pad: Mapping[str, float]
    program_sha256: str
    sequence: SequenceSpec | None = None
    rows: str = ""
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    loss: bool = False
    vjp_order: int = 0
    batches: tuple[int, ...] = ()

    @property
    def free(self) -> frozenset[str]:
        """The symbols of its inputs beside the batch and the sequence."""
        named = {self.batch_symbol, self.sequence and self.sequence.symbol}
        return frozenset(each for t in self.inputs for dim in t.shape for each in symbols(dim)) - named

    @property
    def combinations(self) -> tuple[dict[str, int], ...]:
        """Sizes of the further symbols as a server compiles them: of none the empty one; nothing where it cannot know."""
        return combinations(self.sizes, self.constraints) if self.free == self.sizes.keys() else ()

    @property
    def compiled(self) -> Iterator["Signature"]:
        """Itself as a server compiles it: for each combination of sizes, at each length that rows are padded to.

        Nothing of a loss.
        """
        for sizes in () if self.loss else self.combinations:
            fixed = self.at_sizes(sizes)
            yield from map(fixed.at_length, (0,) if fixed.sequence is None else fixed.sequence.lengths)

    def at_sizes(self, sizes: Mapping[str, int]) -> "Signature":
        """The same where the further symbols are these numbers, so that it has none."""
        if not sizes:
            return self

        def fixed(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
            return tuple(
                replace(t, shape=tuple(size_of(d, sizes) if symbols(d) & self.free else d for d in t.shape))
                for t in tensors
            )

        return replace(self, inputs=fixed(self.inputs), outputs=fixed(self.outputs), sizes={}, bounds={})

    def at_length(self, length: int) -> "Signature":
        """The same with every sequence of `length`, which has no symbol but the batch."""
        if self.sequence is None:
            return self
        symbol = self.sequence.symbol

        def fixed(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
            return tuple(
                replace(t, shape=tuple(length if size == symbol else size for size in t.shape))
                for t in tensors
            )

        return replace(self, inputs=fixed(self.inputs), outputs=fixed(self.outputs), sequence=None)

    def at_batch(self, batch: int) -> "Signature":
        """The same with `batch` rows, as a program has it that is for no others; ANY_BATCH leaves it as it is."""
        return replace(self, inputs=at_batch(self.inputs, batch), outputs=at_batch(self.outputs, batch))

    @property
    def programs(self) -> Mapping[int, str]:
        """Paths of all programs inside the bundle, by the batch each is for."""
        if not self.batches:
            return {ANY_BATCH: f"programs/{self.name}.jaxexport"}
        return {batch: f"programs/{self.name}.b{batch}.jaxexport" for batch in self.batches}

    @property
    def golden(self) -> str:
        """Path of the goldens inside the bundle."""
        return f"golden/{self.name}.npz"

    @property
    def gradient_golden(self) -> str:
        """Path of the gradients' golden inside the bundle; there is none where vjp_order is 0."""
        return f"golden/{self.name}.vjp.npz"


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
class OutputError:
    """How far an output is from the original's: the largest difference, and that over the original's largest value."""

    largest: float
    relative: float


@dataclass(frozen=True)
class StoredWeights:
    """Weights that are stored in fewer bits. dtype: "bf16" or "int8". computes_in: of each such weight, the dtype that
    the program makes of it. Bytes are of the arrays. errors: by "signature/output", over the goldens.
    """

    dtype: str
    computes_in: Mapping[str, str]
    bytes_before: int
    bytes_after: int
    errors: Mapping[str, OutputError] = field(default_factory=dict)


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
    formats: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # by name; files say where they are
    allowed: Mapping[str, str] = field(default_factory=dict)  # by a rule's code: why what it found is right
    stored_weights: StoredWeights | None = None  # None where they are as the function has them
    schema_version: int = field(default=SCHEMA_VERSION)

    def to_json(self) -> str:
        fields = {"schema_version": self.schema_version, **asdict(self)}
        for signature in fields["signatures"].values():
            for key in ("sequence", "rows", "sizes", "bounds", "loss", "vjp_order", "batches"):
                if not signature[key]:  # as readers know it that have never heard of one
                    del signature[key]
        for key in ("formats", "allowed", "stored_weights"):
            if not fields[key]:
                del fields[key]
        return json.dumps(fields, indent=2) + "\n"

    @property
    def served(self) -> dict[str, Signature]:
        """The signatures that requests can name: all but losses."""
        return {name: signature for name, signature in self.signatures.items() if not signature.loss}

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as stored, before any device's padding."""
        return sum(digest.bytes for name, digest in self.files.items() if name.startswith("weights/"))

    @property
    def window(self) -> Window:
        """The releases of jaxlib that are promised to read the programs."""
        return window_of(self.jaxlib_version, self.window_ends)

    @property
    def swap_key(self) -> str:
        """Equal for two versions that differ in nothing but the values of their weights."""
        programs = {
            name: (
                s.program_sha256,
                [asdict(t) for t in (*s.inputs, *s.outputs)],
                dict(s.pad),
                s.sequence and asdict(s.sequence),
                *([s.sizes] if s.sizes else ()),
                *([s.batches] if s.batches else ()),
            )
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
    if not 2000 <= date.fromisoformat(raw["window_ends"]).year <= 9000:
        raise ValueError(f"the window's end {raw['window_ends'][:40]!r}")
    if (
        not isinstance(jaxlib := raw["jaxlib_version"], str)
        or not 0 < len(jaxlib) <= 64
        or not _is_unicode(jaxlib)
    ):
        raise ValueError(f"the jaxlib_version {str(jaxlib)[:40]!r}")
    for key in ("provenance", "usage", "tolerances"):
        fields[key] = dict(raw[key].items())
    fields["platforms"] = tuple(raw["platforms"])
    if not fields["platforms"] or not raw["signatures"]:
        raise ValueError("platforms and signatures may not be empty")
    fields["signatures"] = {name: _signature(value) for name, value in raw["signatures"].items()}
    for name, signature in fields["signatures"].items():
        if signature.name != name:
            raise ValueError(f"the signature {name!r} is called {signature.name!r}")
    fields["weights"] = tuple(WeightSpec(**{**w, "shape": _sizes(w["shape"], int)}) for w in raw["weights"])
    fields["tolerances"] = {
        platform: {output: _tolerance(**value) for output, value in outputs.items()}
        for platform, outputs in raw["tolerances"].items()
    }
    fields["files"] = {name: FileDigest(**value) for name, value in raw["files"].items()}
    fields["formats"] = {name: dict(facts.items()) for name, facts in raw.get("formats", {}).items()}
    fields["allowed"] = dict(raw.get("allowed", {}).items())
    stored = raw.get("stored_weights")
    fields["stored_weights"] = None if stored is None else _stored_weights(stored)
    for key in ("usage", "allowed"):
        for name, text in fields[key].items():
            if not isinstance(text, str) or not _is_unicode(name + text):
                raise ValueError(f"{key} {name!r} is no text")
    return Manifest(**fields)


def _stored_weights(raw: dict[str, Any]) -> StoredWeights:
    computes_in = dict(raw["computes_in"].items())
    if not all(isinstance(text, str) for text in (raw["dtype"], *computes_in.values())):
        raise ValueError("a dtype of stored_weights")
    errors = {name: OutputError(**error) for name, error in raw["errors"].items()}
    return StoredWeights(**{**raw, "computes_in": computes_in, "errors": errors})


def _is_unicode(text: str) -> bool:
    """JSON can escape half of a character, which no other format can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _signature(raw: dict[str, Any]) -> Signature:
    tensors = {
        key: tuple(TensorInfo(t["name"], t["dtype"], _sizes(t["shape"], int | str)) for t in raw[key])
        for key in ("inputs", "outputs")
    }
    for name, value in raw["pad"].items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"the pad of {name!r}")
    if raw.get("rows", "") not in ROWS:
        raise ValueError(f"the rows {str(raw['rows'])[:40]!r}")
    declared = raw.get("sequence")
    sequence = None if declared is None else _sequence(SequenceSpec(**declared), raw["batch_symbol"], tensors)
    loss, order = raw.get("loss", False), raw.get("vjp_order", 0)
    if not isinstance(loss, bool):
        raise ValueError(f"the loss {str(loss)[:40]!r}")
    if not isinstance(order, int) or isinstance(order, bool) or order < 0:
        raise ValueError(f"the vjp_order {str(order)[:40]!r}")
    fields = {**raw, **tensors, "constraints": tuple(raw["constraints"]), "sequence": sequence}
    for name in ("sizes", "bounds"):
        fields[name] = {key: tuple(value) for key, value in raw.get(name, {}).items()}
    fields["batches"] = _batches(raw.get("batches", ()))
    signature = Signature(**fields)
    _check_dimensions(signature)
    if signature.batches and (signature.sequence is not None or signature.free or loss or order):
        raise ValueError("batches beside a sequence, further symbols, a loss or gradients")
    return signature


def _batches(raw: Any) -> tuple[int, ...]:
    batches = tuple(raw)
    whole = all(isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= LARGEST_SIZE for n in batches)
    if not whole or list(batches) != sorted(set(batches)) or len(batches) > MOST_BATCHES:
        raise ValueError(f"the batches {str(batches)[:40]}")
    return batches


def _check_dimensions(signature: Signature) -> None:
    """Every size that a server will compute is one, and there are no more of them than it would compile."""
    for constraint in signature.constraints:
        constraint_symbols(constraint)
    if signature.sizes and signature.sizes.keys() != signature.free:
        raise ValueError(f"sizes of {sorted(signature.sizes)[:5]}")
    for values in signature.sizes.values():
        if not values or len(values) > MOST_LANES:
            raise ValueError("the number of sizes")
        _sizes(values, int)
    lanes = len(signature.sequence.lengths) if signature.sequence else 1
    if len(signature.combinations) * lanes > MOST_LANES or (signature.sizes and not signature.combinations):
        raise ValueError(f"{len(signature.combinations)} combinations of sizes")
    for fixed in map(signature.at_sizes, signature.combinations if signature.sizes else ()):
        for tensor in (*fixed.inputs, *fixed.outputs):
            _sizes(tensor.shape, int | str)
    for least, most in signature.bounds.values():
        if any(not isinstance(each, int | None) or isinstance(each, bool) for each in (least, most)):
            raise ValueError(f"the bounds {least!r}, {most!r}")


def _sequence(
    sequence: SequenceSpec, batch_symbol: str, tensors: Mapping[str, tuple[TensorInfo, ...]]
) -> SequenceSpec:
    """A sequence that the shapes bear out: a server takes its word for what it pads and cuts."""
    symbol, most = sequence.symbol, sequence.most
    if not isinstance(symbol, str) or symbol == batch_symbol:
        raise ValueError(f"the sequence symbol {str(symbol)[:40]!r}")
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= LARGEST_SIZE:
        raise ValueError(f"a sequence of at most {str(most)[:40]}")
    if not any(symbol in t.shape for t in tensors["inputs"]):
        raise ValueError(f"no input has the sequence {symbol[:40]!r}")
    for t in (*tensors["inputs"], *tensors["outputs"]):
        after = t.shape[2:] if t.shape[1:2] == (symbol,) else t.shape[1:]
        if t.shape[:1] != (batch_symbol,) or any({symbol, batch_symbol} & symbols(size) for size in after):
            raise ValueError(f"the shape of {t.name[:40]!r} beside a sequence")
    if any(symbol in t.shape and 0 in t.shape for t in tensors["inputs"]):
        raise ValueError("an input with a sequence and no elements")
    return sequence


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
