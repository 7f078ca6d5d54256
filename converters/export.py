"""Any JAX function as a bundle.

from converters import TensorSpec, export_bundle
export_bundle("models/iris/1", fn, params, inputs={"x": TensorSpec("float32", "b, 4")},
              outputs=("logits",), example={"x": x_example}, platforms=("cpu", "cuda"))
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.export
from jax.sharding import Mesh

from converters.bundle import parse_version
from converters.draft import Draft, Drafter, Target
from converters.errors import BadSpec, ExportRefused, PlatformMissing
from converters.fewer_bits import fewer_bits, parse_weights_dtype, scale_cuts, with_errors
from converters.formats import Formats, parse_formats
from converters.gradient_proof import check_order
from converters.lint import RULES, Findings
from converters.manifest import SequenceSpec
from converters.options import Accept, ExportOptions
from converters.placement import Placement, make_mesh
from converters.program import calling
from converters.publish import claimed_version
from converters.shardings import parse_cuts
from converters.spec import ExportSpec, SignatureSpec, TensorSpec
from converters.weights import flatten_params
from converters.writer import Contents, write_bundle

__all__ = ["ExportOptions", "ExportSpec", "SequenceSpec", "SignatureSpec", "TensorSpec", "export_bundle"]

log = logging.getLogger(__name__)
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
SIGNATURE = "predict"
SIGNATURE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def export_bundle(
    path: Path | str,
    fn: Callable[..., Any] | None = None,
    params: Any = None,
    *,
    inputs: Mapping[str, TensorSpec] | None = None,
    outputs: Sequence[str] | None = None,
    example: Mapping[str, Any] | None = None,
    platforms: Sequence[str] = ("cpu", "cuda"),
    usage: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    sequence: SequenceSpec | None = None,
    pad: Mapping[str, float] | None = None,
    constraints: Sequence[str] | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    fixed_batches: Sequence[int] | None = None,
    signatures: Mapping[str, SignatureSpec] | None = None,
    formats: Formats | Sequence[str] = (),
    allow: Mapping[str, str] | None = None,
    weights_dtype: str | None = None,
    calling_convention: int | None = None,
    accept: Accept | None = None,
    vjp_order: int = 0,
    mesh: Mapping[str, int] | Mesh | None = None,
    shardings: Mapping[str, Sequence[Any]] | None = None,
) -> Path:
    """Exports `fn(params, **inputs)` into models/<name>/<version> and returns that folder.

    path: the last part is a positive integer, or "next". params: any pytree of arrays. outputs: names, in the order
    of the function's tuple; a dict has its own. example: arrays of at least one row, from which the goldens are made.
    usage: strings for clients, as {"task": "next_token"}. provenance: where the weights come from. sequence: declares
    the symbol that inputs may have as second dimension, as in SequenceSpec("t", most=256) for "b, t": a server then
    takes any length up to `most`, and pads rows behind their end. What depends on a row's length has to come from an
    input along it, as a mask: the proof varies lengths. pad: the value it pads an input with, 0 if not here.
    constraints: what holds of further symbols in the inputs' shapes, as ("k >= 2", "t <= 256"). sizes: of each of them
    what a server compiles, as {"k": (2, 4, 8)}; it does not serve such a function without, as it never compiles for a
    request. fixed_batches: for a function that needs its batch as a number: one program for each of these, as (1, 2, 4, 8),
    instead of one for any; rows between them are padded to the next, and more than the largest are split.
    signatures: several functions of the same params, by the name that a client asks for, each with what it takes and
    gives: SignatureSpec(fn, inputs=..., outputs=..., example=...); then nothing of that stands beside it. One function
    alone is the signature "predict", which is also what a client gets that names none.
    formats: what to write beside the program, by name with the options of each, or just the names.
    allow: rules of docs/lint.md that may find something, by code, each with the reason why it is right here.
    weights_dtype: "bf16" or "int8" stores matrices so, and the program computes as before; see docs/precision.md.
    calling_convention: of jax.export, one that this JAX supports; None is its own choice.
    accept: is given what was proven, and the weights by name on the device, and raises if it is not to be published.
    vjp_order: how often whoever loads the programs can differentiate them backwards, with jax.grad or jax.vjp.
    mesh: programs for as many devices as its axes say, {"tensor": 2} or a jax.sharding.Mesh. shardings: how weights are
    cut over it, by patterns of their names, each as a PartitionSpec has it: {"*.up.kernel": (None, "tensor")}; the first
    that matches counts, and what none matches is copied. Inputs and outputs are whole on every device. See docs/sharded.md.

    Raises BadSpec (the arguments do not fit each other), ExportRefused (the program would be wrong or fail later),
    PlatformMissing (this machine has none of `platforms`, or too few devices), VersionTaken, StorageError.
    """
    alone = {
        "fn": fn,
        "inputs": inputs,
        "outputs": outputs,
        "example": example,
        "sequence": sequence,
        "pad": pad,
        "constraints": constraints,
        "sizes": sizes,
        "fixed_batches": fixed_batches,
    }
    options = ExportOptions(
        platforms=platforms,
        formats=formats,
        allow=allow or {},
        weights_dtype=weights_dtype,
        calling_convention=calling_convention,
        accept=accept,
        vjp_order=vjp_order,
        mesh=mesh or {},
        shardings=shardings or {},
    )
    several = signatures is not None
    specs = _several(signatures, alone) if several else _alone(alone)
    return export_signatures(path, params, specs, options, usage=usage, provenance=provenance, named=several)


def export_signatures(
    path: Path | str,
    params: Any,
    specs: Mapping[str, SignatureSpec],
    options: ExportOptions,
    *,
    usage: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
    named: bool = True,
    attached: Mapping[str, bytes] | None = None,
) -> Path:
    """As `export_bundle`, of signatures by name. named: whether errors have to say which signature they are about.

    attached: files that go with the model, by name.
    """
    path = Path(path)
    model_dir, version = path.parent, parse_version_name(path.name)
    findings = Findings(options.allow)
    axes, target, asked = options.axes, _target(tuple(options.platforms)), parse_formats(options.formats)
    specs = _with_order(specs, check_order(options.vjp_order))
    if asked and all(spec.loss for spec in specs.values()):
        raise BadSpec(
            f"formats: {', '.join(asked)} beside losses alone; they hold what answers row by row: add such a signature, or "
            "leave them out"
        )
    weights, stored = flatten_params(params), None
    cuts = parse_cuts(axes, options.shardings, weights.arrays)
    if (dtype := parse_weights_dtype(options.weights_dtype)) is not None:
        weights, stored = fewer_bits(weights, dtype)
        cuts |= scale_cuts(cuts, weights.arrays)
    if axes:
        target = replace(target, placement=Placement(make_mesh(axes, "mesh"), cuts))
    drafter = Drafter(weights, target, findings)
    with calling(options.calling_convention):
        drafts = tuple(_draft(drafter, name, spec, named=named) for name, spec in specs.items())
    if options.accept is not None:
        options.accept(drafts, drafter.on_device)
    for code in findings.unneeded:
        log.warning("allow %s: nothing needed it (%s); leave it out", code, RULES[code].name)
    contents = Contents(
        model=model_dir.absolute().name,
        drafts=drafts,
        weights=weights.arrays,
        platforms=target.platforms,
        precision=target.precision,
        usage=usage or {},
        origin=_origin(specs) if provenance is None else provenance,
        formats=asked,
        allowed=findings.allowed,
        stored_weights=stored and with_errors(stored, params, specs, drafts),
        placement=target.placement,
        attached=attached or {},
    )
    with claimed_version(model_dir.absolute(), version) as (number, folder):
        write_bundle(folder, contents)
    return model_dir / str(number)


def _alone(given: Mapping[str, Any]) -> dict[str, SignatureSpec]:
    missing = [name for name in ("fn", "inputs", "outputs", "example") if given[name] is None]
    if missing:
        raise BadSpec(f"export_bundle: {', '.join(missing)} is missing; it is needed, or signatures= instead")
    return {SIGNATURE: SignatureSpec(**{name: value for name, value in given.items() if value is not None})}


def _several(signatures: Mapping[str, SignatureSpec], beside: Mapping[str, Any]) -> dict[str, SignatureSpec]:
    both = [name for name, value in beside.items() if value is not None]
    if both:
        raise BadSpec(f"signatures: {both[0]} is given beside them; it belongs into a SignatureSpec")
    return check_signatures(signatures)


def check_signatures(signatures: Mapping[str, SignatureSpec]) -> dict[str, SignatureSpec]:
    """BadSpec for none, for a name that no client could ask for, and for what is no SignatureSpec."""
    if not isinstance(signatures, Mapping) or not signatures:
        raise BadSpec("signatures: none are given; name at least one, as in {'predict': SignatureSpec(...)}")
    for name, spec in signatures.items():
        if not isinstance(name, str) or not SIGNATURE_NAME.fullmatch(name):
            raise BadSpec(
                f"signatures: {name!r} is no name; letters, digits and '_' are allowed, first a letter"
            )
        if not isinstance(spec, SignatureSpec):
            raise BadSpec(f"signatures: {name!r} is a {type(spec).__name__}; a SignatureSpec is needed")
    return dict(signatures)


def _with_order(specs: Mapping[str, SignatureSpec], order: int) -> dict[str, SignatureSpec]:
    """order: of gradients, where a signature does not say its own."""
    return {n: replace(s, vjp_order=order) if s.vjp_order is None else s for n, s in specs.items()}


def _draft(drafter: Drafter, name: str, spec: SignatureSpec, *, named: bool) -> Draft:
    try:
        return drafter.draft(name, spec)
    except (BadSpec, ExportRefused) as error:
        if not named:
            raise
        if isinstance(error, ExportRefused):
            raise ExportRefused(f"signature {name!r}: {error.what}", error.code) from error
        raise BadSpec(f"signature {name!r}: {error}") from error


def _origin(specs: Mapping[str, SignatureSpec]) -> dict[str, str]:
    return {"source": "function", "function": ", ".join(_qualified(spec.fn) for spec in specs.values())}


def parse_version_name(name: str) -> int | None:
    """A version as a path or a flag has it; None is the next free one."""
    if name == "next":
        return None
    if parse_version(name) is None:
        raise BadSpec(
            f"version {name!r}: a positive integer below 2**63 or 'next' is needed, as in models/iris/1"
        )
    return int(name)


def local_platform() -> str:
    """jax.export's name for this process's device: "cpu", "cuda", "rocm" or "tpu"."""
    return jax.export.default_export_platform()


def _target(platforms: tuple[str, ...]) -> Target:
    """BadSpec for a platform that there is not, PlatformMissing where this machine's is not among them."""
    unknown = [p for p in platforms if p not in PLATFORMS]
    if unknown or not platforms:
        raise BadSpec(f"platforms: {list(platforms)}; some of {', '.join(PLATFORMS)} are needed")
    here = local_platform()
    if here not in platforms:
        raise PlatformMissing(
            f"platforms: {', '.join(platforms)}; the program is proven on this machine before it is published, and "
            f"this machine is {here}: add {here}, or export on a machine with one of them"
        )
    precision = str(jax.config.jax_default_matmul_precision or "default")  # pyright: ignore[reportAttributeAccessIssue]
    return Target(platforms, here, precision)


def _qualified(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', type(fn).__name__)}"
