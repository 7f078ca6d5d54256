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
from jax.extend.mlir.dialects import stablehlo

from converters.errors import BadSpec, ExportRefused
from converters.manifest import TensorInfo

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
    """`fn` under plain jit on its own params: what the program is measured against."""
    jitted = jax.jit(lambda tree, inputs: name_outputs(fn(tree, **inputs), outputs))
    placed = jax.device_put(params)
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
) -> jax.export.Exported:
    """Traces `program` with the symbols of its inputs' shapes and lowers it for `platforms`.

    constraints: what is known of the symbols, as "t <= 256".
    ExportRefused: a dimension cannot be symbolic, or the platforms cannot be lowered for, with JAX's reason.
    """
    scope = jax.export.SymbolicScope(tuple(constraints))
    shapes = {t.name: jax.export.symbolic_shape(", ".join(map(str, t.shape)), scope=scope) for t in inputs}
    specs = {t.name: jax.ShapeDtypeStruct(shapes[t.name], np.dtype(t.dtype)) for t in inputs}
    with no_source_locations():
        traced = trace_or_refuse(lambda: jax.jit(program).trace(weight_specs(weights), specs))
        refuse_callbacks(traced.jaxpr.jaxpr)
        exporter = jax.export.export(jax.jit(program), platforms=tuple(platforms))
        return trace_or_refuse(lambda: exporter(weight_specs(weights), specs))


def weight_specs(weights: Mapping[str, np.ndarray]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(w.shape, w.dtype) for name, w in weights.items()}


@contextlib.contextmanager
def no_source_locations() -> Iterator[None]:
    """Equal programs have equal bytes: file names and line numbers stay out of them."""
    before = jax.config.jax_traceback_in_locations_limit  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def trace_or_refuse[T](step: Callable[[], T]) -> T:
    """Runs a step of the tracing; whatever the function or JAX raises becomes one line."""
    try:
        return step()
    except (BadSpec, ExportRefused):
        raise
    # The function is the caller's: it may raise anything, and JAX has no common error either.
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        where = _place_in_caller(error)
        raise ExportRefused(
            f"the function cannot be exported{where}: {type(error).__name__}: {reason}"
        ) from error


def _place_in_caller(error: BaseException) -> str:
    """ " at model.py:12" for the last frame outside installed packages and this one, if there is any."""
    place, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if "site-packages" not in name and not name.startswith("<") and name != __file__:
            place = f" at {name.rsplit('/', 1)[-1]}:{step.tb_lineno}"
        step = step.tb_next
    return place


def refuse_callbacks(jaxpr: Any) -> None:
    """ExportRefused where the program calls back into Python, which no other process has."""
    for equation in _equations(jaxpr):
        name = equation.primitive.name
        if "callback" in name or name.startswith("debug_"):
            hint = " (jax.debug.print or its like)" if name.startswith("debug_") else ""
            raise ExportRefused(
                f"the function uses {name}{hint}: a server has no Python source to call; remove it"
            )


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from _equations(getattr(value, "jaxpr", value))


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def operations(exported: jax.export.Exported) -> Iterator[ir.Operation]:
    """Every operation of the program, depth first."""
    context = ir.Context()
    stablehlo.register_dialect(context)
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
