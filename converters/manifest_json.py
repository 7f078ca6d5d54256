"""manifest.json read and written: the only module that knows its JSON.

The file is written once by an export and read by everyone else, so whatever it says is checked before it is believed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from typing import Any

from converters.cuts import Cut, misfit
from converters.dims import constraint_symbols, symbols
from converters.errors import BundleError
from converters.manifest import (
    MOST_BATCHES,
    MOST_LANES,
    ROWS,
    SCHEMA_VERSION,
    FileDigest,
    Manifest,
    OutputError,
    SequenceSpec,
    Signature,
    StoredWeights,
    TensorInfo,
    Tolerance,
    WeightSpec,
)

# Those of numpy's arrays; and what one size of them may be.
MOST_DIMENSIONS = 64
LARGEST_SIZE = 2**63 - 1
LONGEST_AXIS = 64
# Fields of a signature, and of the manifest, that are left out where they say nothing: as readers know it that have
# never heard of them.
OF_A_SIGNATURE = ("sequence", "rows", "sizes", "bounds", "loss", "vjp_order", "batches")
OF_A_MANIFEST = ("formats", "allowed", "stored_weights", "mesh", "shardings")


def to_json(manifest: Manifest) -> str:
    """The text of manifest.json."""
    fields = {"schema_version": manifest.schema_version, **asdict(manifest)}
    for part, names in (
        (fields, OF_A_MANIFEST),
        *((s, OF_A_SIGNATURE) for s in fields["signatures"].values()),
    ):
        for name in names:
            if not part[name]:
                del part[name]
    return json.dumps(fields, indent=2) + "\n"


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
    fields["mesh"] = _mesh(raw.get("mesh", {}), raw["nr_devices"])
    fields["shardings"] = _shardings(raw.get("shardings", {}), fields["weights"], fields["mesh"])
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


def _mesh(raw: Any, devices: Any) -> dict[str, int]:
    """Sizes by axis, which make as many devices as are said."""
    mesh = dict(raw.items())
    if not all(name.isidentifier() and len(name) <= LONGEST_AXIS for name in mesh):
        raise ValueError("the name of an axis of the mesh")
    if any(
        isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in (*mesh.values(), devices)
    ):
        raise ValueError(f"the mesh {str(mesh)[:80]}")
    if math.prod(mesh.values()) != devices or (mesh and devices == 1):
        raise ValueError(f"the mesh {str(mesh)[:80]} for {str(devices)[:40]} devices")
    return mesh


def _shardings(raw: Any, weights: tuple[WeightSpec, ...], mesh: Mapping[str, int]) -> dict[str, Cut]:
    """How weights are cut, into equal pieces."""
    shapes, cuts = {weight.name: weight.shape for weight in weights}, {}
    for name, cut in raw.items():
        cuts[name] = tuple(tuple(part) if isinstance(part, list) else part for part in cut)
        if why := misfit(cuts[name], shapes[name], mesh):
            raise ValueError(f"the sharding of {name[:40]!r}: {why[:80]}")
    return cuts


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
