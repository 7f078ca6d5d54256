"""manifest.json as values: what a bundle is, takes, gives and weighs.

docs/bundle-format.md has the fields; how they are read and written is in manifest_json.py.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from converters.cuts import Cut
from converters.dims import all_hold, symbols
from converters.dims import size as size_of
from converters.window import Window, window_of

SCHEMA_VERSION = 1
# The batch of a program that takes any.
ANY_BATCH = 0
# How alike a row is among others: not recorded, bit for bit, or within the tolerances.
ROWS = ("", "bitwise", "tolerance")
# Lengths that rows are padded to: halves of the longest, so many at most, and none that saves next to nothing.
MOST_LENGTHS = 5
SHORTEST_LENGTH = 8
# Programs that a server compiles for one signature: its sizes, each at all of its lengths.
MOST_LANES = 16
# Batches that one signature may be exported for, each with a program of its own.
MOST_BATCHES = 16
# Rows of one of them: the export compares the function with the program at each, and at one row more.
MOST_ROWS = 65536
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
    mesh: Mapping[str, int] = field(default_factory=dict)  # devices by axis; empty for one device
    shardings: Mapping[str, Cut] = field(default_factory=dict)  # by weight; one that is not here is copied
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def served(self) -> dict[str, Signature]:
        """The signatures that requests can name: all but losses."""
        return {name: signature for name, signature in self.signatures.items() if not signature.loss}

    @property
    def of_a_run(self) -> bool:
        """Whether it comes of a run of jaxport's, whose checkpoint can be exported again."""
        return self.provenance.get("source") == "run"

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
        placed = [dict(self.mesh), sorted(self.shardings.items())] if self.mesh else []
        return hashlib.sha256(json.dumps([programs, weights, *placed]).encode()).hexdigest()
