"""The function as a program: traced once with a symbolic batch, lowered for every platform, and looked into."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flatbuffers.encode
import flatbuffers.number_types
import flatbuffers.packer
import flatbuffers.table
import jax
import jax.export
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from converters.errors import BadSpec, ExportRefused
from converters.lint.findings import Findings
from converters.lint.jaxprs import lint_jaxpr, works_along
from converters.lint.tracing import trace_or_refuse, unpromised_targets
from converters.manifest import TensorInfo
from converters.placement import Placement
from converters.weights import is_array

Arrays = Mapping[str, Any]
WIDEST_BITS = 128  # complex128; MLIR's Python gives no width for complex numbers
Program = Callable[[Arrays, Arrays], dict[str, Any]]
Source = Callable[[Arrays], dict[str, Any]]


def as_program(fn: Callable[..., Any], rebuild: Callable[[Arrays], Any], outputs: Sequence[str]) -> Program:
    """`fn(params, **inputs)` as a function of two flat dicts to a dict of named outputs."""

    # The names of this function and its arguments are in the program's bytes: they never vary.
    def predict(weights: Arrays, inputs: Arrays) -> dict[str, Any]:
        return name_outputs(fn(rebuild(weights), **inputs), outputs)

    return predict


def as_source(fn: Callable[..., Any], params: Any, outputs: Sequence[str]) -> Source:
    """`fn` under plain jit on its own params: what the program is measured against.

    The params never go by their names here: a name that is given to the wrong array shows.
    """
    leaves, treedef = jax.tree.flatten(params)
    free = [at for at, leaf in enumerate(leaves) if is_array(leaf)]

    def call(arrays: Sequence[Any], inputs: Arrays) -> dict[str, Any]:
        filled = list(leaves)
        for at, array in zip(free, arrays, strict=True):
            filled[at] = array
        return name_outputs(fn(jax.tree.unflatten(treedef, filled), **inputs), outputs)

    jitted, placed = jax.jit(call), jax.device_put([leaves[at] for at in free])
    return lambda inputs: jitted(placed, dict(inputs))


def name_outputs(result: Any, outputs: Sequence[str]) -> dict[str, Any]:
    """A function's result by name: a dict has its own, an array or a tuple takes `outputs` in order."""
    if isinstance(result, Mapping):
        if set(result) != set(outputs):
            raise BadSpec(
                f"outputs: the function gives {sorted(map(str, result))}, named are {sorted(outputs)}"
            )
        named = {name: result[name] for name in outputs}
    else:
        values = result if isinstance(result, tuple | list) else (result,)
        if len(values) != len(outputs):
            raise BadSpec(f"outputs: the function gives {len(values)}, named are {list(outputs)}")
        named = dict(zip(outputs, values, strict=True))
    for name, value in named.items():
        if not isinstance(value, jax.Array | np.ndarray | np.generic):
            raise BadSpec(f"outputs: {name!r} is a {type(value).__name__}; an array is needed, one per name")
    return named


def export_program(
    program: Program,
    weights: Mapping[str, np.ndarray],
    inputs: Sequence[TensorInfo],
    platforms: Sequence[str],
    constraints: Sequence[str] = (),
    findings: Findings | None = None,
    placement: Placement | None = None,
) -> jax.export.Exported:
    """Traces `program` with the symbols of its inputs' shapes and lowers it for `platforms`.

    constraints: what is known of the symbols, as "t <= 256". ExportRefused: a rule of converters/lint is broken that
    `findings` does not allow. placement: of the weights, for a program of several devices.
    """
    findings = findings or Findings()
    scope = jax.export.SymbolicScope(tuple(constraints))
    shapes = {t.name: jax.export.symbolic_shape(", ".join(map(str, t.shape)), scope=scope) for t in inputs}
    specs = {t.name: jax.ShapeDtypeStruct(shapes[t.name], np.dtype(t.dtype)) for t in inputs}
    arguments = (weight_specs(weights), specs)

    def why() -> str:
        return "JP105" if _goes_with_numbers(program, weights, inputs) else ""

    with no_source_locations():
        narrowed: list[str] = []
        traced = trace_or_refuse(lambda: jax.jit(program).trace(*arguments), why, narrowed)
        if narrowed:
            findings.add("JP116", f"64 bits are asked for and x64 is off: {narrowed[0]}")
        lint_jaxpr(traced.jaxpr.jaxpr, len(weights), findings)
        findings.along_batch = works_along(traced.jaxpr.jaxpr, str(inputs[0].shape[0]))
        jitted = jax.jit(program) if placement is None else placement.jit(program, list(weights))
        return _lower(jitted, arguments, tuple(platforms), findings, why)


def _goes_with_numbers(
    program: Program, weights: Mapping[str, np.ndarray], inputs: Sequence[TensorInfo]
) -> bool:
    """Whether the function is traced where every symbol is a number: then it is the symbol that it does not bear."""
    for size in (6, 1):
        specs = {
            t.name: jax.ShapeDtypeStruct(
                tuple(d if isinstance(d, int) else size for d in t.shape), np.dtype(t.dtype)
            )
            for t in inputs
        }
        with contextlib.suppress(ExportRefused):
            trace_or_refuse(lambda specs=specs: jax.jit(program).trace(weight_specs(weights), specs).lower())
            return True
    return False


def _lower(
    jitted: Any,
    arguments: tuple[Any, Any],
    platforms: tuple[str, ...],
    findings: Findings,
    why: Callable[[], str],
) -> jax.export.Exported:
    def export(platforms: tuple[str, ...], targets: Sequence[str] = ()) -> jax.export.Exported:
        checks = [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
        return jax.export.export(jitted, platforms=platforms, disabled_checks=checks)(*arguments)

    def elsewhere() -> str:
        """A platform that is alone in failing is told from a function that nowhere goes."""
        for platform in platforms:
            with contextlib.suppress(ExportRefused):
                trace_or_refuse(lambda platform=platform: export((platform,)))
                return "JP117"
        return why()

    try:
        return trace_or_refuse(lambda: export(platforms), elsewhere)
    except ExportRefused as error:
        targets = unpromised_targets(error.__cause__)
        if not targets:
            raise
    findings.add("JP102", f"the program calls {', '.join(targets)}, which JAX promises for no other release")
    return trace_or_refuse(lambda: export(platforms, targets), elsewhere)


def weight_specs(weights: Mapping[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(w.shape, w.dtype) for name, w in weights.items()}


@contextlib.contextmanager
def calling(convention: int | None) -> Iterator[None]:
    """Exports have this calling convention; None leaves it to JAX. BadSpec for one that this JAX does not write."""
    least = jax.export.minimum_supported_calling_convention_version
    most = jax.export.maximum_supported_calling_convention_version
    if convention is not None and not least <= convention <= most:
        raise BadSpec(
            f"--calling-convention {convention}: jax {jax.__version__} writes {least} to {most}; leave it out, or name one of those"
        )
    name = "jax_export_calling_convention_version"
    before = jax.config.values[name]
    jax.config.update(name, before if convention is None else convention)
    try:
        yield
    finally:
        jax.config.update(name, before)


@contextlib.contextmanager
def no_source_locations() -> Iterator[None]:
    """Equal programs have equal bytes: file names and line numbers stay out of them."""
    before = jax.config.jax_traceback_in_locations_limit  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def operations(exported: jax.export.Exported) -> Iterator[ir.Operation]:
    """Every operation of the program, depth first."""
    context = ir.Context()
    stablehlo.register_dialect(context)
    sdy.register_dialect(context)  # programs of several devices, and the solvers of jnp.linalg
    module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
    yield from _walk(module.operation)


def _walk(operation: Any) -> Iterator[ir.Operation]:
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from _walk(inner.operation)


def operation_counts(exported: jax.export.Exported) -> Counter[str]:
    return Counter(operation.name for operation in operations(exported))


def constants(exported: jax.export.Exported) -> list[tuple[str, int]]:
    """(type, bytes) of every constant that is not one value repeated, largest first."""
    found = []
    for operation in operations(exported):
        if operation.name != "stablehlo.constant":
            continue
        kind = ir.RankedTensorType(operation.results[0].type)
        elements = int(np.prod(kind.shape))
        if elements > 1 and not _is_splat(operation):
            bits = getattr(kind.element_type, "width", WIDEST_BITS)
            found.append((str(kind), elements * bits // 8))
    return sorted(found, key=lambda item: -item[1])


def _is_splat(operation: ir.Operation) -> bool:
    try:
        return bool(getattr(operation.attributes["value"], "is_splat", False))
    except TypeError:  # MLIR's Python has no class for complex constants, so they count as they are
        return False


def stablehlo_version(exported: jax.export.Exported) -> str:
    """The StableHLO version that the bytes say they are written in."""
    head = exported.mlir_module_serialized[:64]
    start = head.find(b"StableHLO_v")
    end = head.find(b"\0", start)
    return head[start + len(b"StableHLO_v") : end].decode() if start >= 0 else "unknown"


def serialization_version(program: bytes) -> int:
    """jax.export's own format version: field 0 of the root table of the serialized bytes."""
    root = flatbuffers.encode.Get(flatbuffers.packer.uoffset, program, 0)
    table = flatbuffers.table.Table(program, root)
    offset = table.Offset(4)
    return table.Get(flatbuffers.number_types.Uint16Flags, offset + table.Pos) if offset else 0
