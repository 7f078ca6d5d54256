"""A proven function lowered once more, for readers other than jax.export: no version of ours, and nothing only XLA has."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, func, stablehlo

from converters.errors import ExportRefused
from converters.formats import ProvenSignature
from converters.manifest import ANY_BATCH, Signature
from converters.program import no_source_locations, weight_specs

# What jax.export itself leaves in a program, and every reader of its programs knows.
CHECKS = {"shape_assertion"}


def lower(
    one: ProvenSignature, weights: Mapping[str, np.ndarray], platforms: Sequence[str], batch: int = ANY_BATCH
) -> jax.export.Exported:
    """The signature's function for `platforms`; for one batch, and the longest sequence, where `batch` is given."""
    signature = one.signature
    if batch != ANY_BATCH and signature.sequence is not None:
        signature = signature.at_length(signature.sequence.most)
    specs = input_specs(signature, batch)
    # Without Shardy, whose attributes no other reader needs, and StableHLO's own reader does not know.
    before = jax.config.jax_use_shardy_partitioner  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with no_source_locations():
            return jax.export.export(jax.jit(one.function), platforms=tuple(platforms))(
                weight_specs(weights), specs
            )
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def input_specs(signature: Signature, batch: int = ANY_BATCH) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes by input name; symbols stay, but for the batch where one is given."""
    scope = jax.export.SymbolicScope(signature.constraints if batch == ANY_BATCH else ())

    def shape(sizes: Sequence[Any]) -> Any:
        named = [batch if batch != ANY_BATCH and s == signature.batch_symbol else s for s in sizes]
        return jax.export.symbolic_shape(", ".join(map(str, named)), scope=scope)

    return {t.name: jax.ShapeDtypeStruct(shape(t.shape), np.dtype(t.dtype)) for t in signature.inputs}


def portable(what: str, exported: jax.export.Exported, version: str) -> bytes:
    """The program as StableHLO bytecode of `version`, with what JAX names a composite called as a function.

    ExportRefused: it calls what only jaxlib has, as the solvers of LAPACK, or `version` lacks something that it uses.
    """
    calls = sorted(set(re.findall(r"custom_call @([\w.$-]+)", exported.mlir_module())) - CHECKS)
    if calls:
        raise ExportRefused(
            f"{what}: the program calls {', '.join(calls)}, which only jaxlib has; leave this format out, or write the "
            "function without it"
        )
    context = ir.Context()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    try:
        module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
        for operation in [o for o in _walk(module.operation) if o.name == "stablehlo.composite"]:
            _call_instead(operation)
        return stablehlo.serialize_portable_artifact(module, version)
    except ValueError as error:
        raise ExportRefused(
            f"{what}: the program cannot be written as StableHLO {version} ({error})"
        ) from error


def _call_instead(composite: Any) -> None:
    """Readers of a symbolic batch refine the shapes of what is called, and not of what a composite stands for."""
    with composite.context, ir.InsertionPoint(composite), composite.location:
        call = func.CallOp(
            [result.type for result in composite.results],
            ir.FlatSymbolRefAttr(composite.attributes["decomposition"]),
            list(composite.operands),
        )
    for old, new in zip(composite.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    composite.erase()


def _walk(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from _walk(inner.operation)


def argument_names(exported: jax.export.Exported) -> tuple[list[str], list[str]]:
    """(weights, inputs) in the order of the program's arguments. What it never uses is no argument of it."""
    weights, inputs = jax.tree.unflatten(exported.in_tree, list(range(len(exported.in_avals))))[0]
    kept = set(exported.module_kept_var_idx)

    def names(side: Mapping[str, int]) -> list[str]:
        return [name for name, at in sorted(side.items(), key=lambda item: item[1]) if at in kept]

    return names(weights), names(inputs)


def output_names(exported: jax.export.Exported) -> list[str]:
    """In the order of the program's results."""
    places = jax.tree.unflatten(exported.out_tree, list(range(len(exported.out_avals))))
    return sorted(places, key=lambda name: places[name])


def any_batch(what: str, one: ProvenSignature) -> None:
    """ExportRefused where the function is for fixed batches only, and the format has one program for any."""
    if ANY_BATCH not in one.exported:
        batches = ", ".join(map(str, one.exported))
        raise ExportRefused(
            f"{what}: {one.signature.name!r} takes batches of {batches} only, and this format has one program for any; "
            "leave it out, or use stablehlo, which has one for each"
        )
