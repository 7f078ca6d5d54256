"""One signature on its way into a bundle: its function traced, exported and proven, and lying nowhere yet."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import numpy as np

from converters.batch_proof import fixed_outputs, prove_batches
from converters.dims import all_hold, symbols
from converters.errors import BadSpec, ExportRefused
from converters.formats import ProvenSignature
from converters.gradient_proof import (
    GradientProof,
    check_differentiable,
    check_order,
    prove_gradients,
    serialize,
)
from converters.lint.findings import Findings
from converters.manifest import ANY_BATCH, SequenceSpec, Signature, TensorInfo, at_batch, combinations
from converters.program import as_program, as_source, constants, export_program
from converters.proof import (
    OTHER_BATCHES,
    Proof,
    batch_outputs,
    check_repeats,
    loss_outputs,
    prove,
    together,
)
from converters.sequence_proof import Padding, prove_sequence
from converters.spec import (
    SignatureSpec,
    free_symbols,
    parse_batches,
    parse_example,
    parse_inputs,
    parse_pad,
    parse_sizes,
)
from converters.symbols import Bounds, bounds, tried
from converters.weights import Weights

CONSTANT_LIMIT = 64 << 10


@dataclass(frozen=True)
class Target:
    """Where the programs of a bundle are to run. here: this machine's platform, which is one of `platforms`.

    precision: JAX's name of the precision of products, "default" unless it was raised.
    """

    platforms: tuple[str, ...]
    here: str
    precision: str


@dataclass(frozen=True)
class Draft:
    """proven: the signature as every further format gets it. programs: their bytes, by batch as `proven.exported`.

    gradient: of a program that can be differentiated.
    """

    proven: ProvenSignature
    programs: Mapping[int, bytes]
    gradient: GradientProof | None = None

    @property
    def signature(self) -> Signature:
        return self.proven.signature


def draft_signature(
    name: str, spec: SignatureSpec, weights: Weights, target: Target, findings: Findings
) -> Draft:
    """Exports the spec's function and proves it on this machine. Raises BadSpec, ExportRefused."""
    outputs = tuple(spec.outputs)
    if not outputs or len(set(outputs)) < len(outputs):
        raise BadSpec(f"outputs: {list(outputs)}; at least one name is needed, each once")
    sequence, further = spec.sequence, tuple(spec.constraints)
    order = check_order(spec.vjp_order or 0)
    if spec.loss and sequence is not None:
        raise BadSpec("loss: it has a sequence too; no row is padded for a loss: fix the length")
    symbol, tensors = parse_inputs(spec.inputs, sequence, further, spec.example)
    free = free_symbols(tensors, symbol, sequence)
    other = "loss=" if spec.loss else "vjp_order=" if order else ""
    batches = parse_batches(spec.fixed_batches, free, sequence, other)
    sizes = parse_sizes(spec.sizes, free, further, sequence)
    rows, fill = parse_example(tensors, spec.example, sequence), parse_pad(tensors, spec.pad or {})
    program = as_program(spec.fn, weights.rebuild, outputs)
    constraints = (*further, *(() if sequence is None else (f"{sequence.symbol} <= {sequence.most}",)))
    offer = "" if batches or spec.loss or (free and sequence is None) else _cure(sequence)
    exported = {
        batch: _exported(
            program, weights.arrays, at_batch(tensors, batch), target, constraints, offer, findings
        )
        for batch in batches or (ANY_BATCH,)
    }
    if spec.loss:
        shapes = loss_outputs(exported[ANY_BATCH], outputs)
    elif batches:
        shapes = fixed_outputs(exported, outputs, symbol)
    else:
        shapes = batch_outputs(exported[ANY_BATCH], outputs, symbol, sequence and sequence.symbol, free)
    for each in exported.values():
        _lint_constants(each, findings)
    limits = _bounds(free, tensors, shapes, constraints)
    cases = combinations(sizes, further) if sizes or not free else tried(rows.sizes, limits, further)
    if not all_hold(further, rows.sizes):
        raise BadSpec(f"example: {rows.sizes} is outside of the constraints {list(further)}")
    source = as_source(spec.fn, weights.params, outputs)

    def proven(case: Mapping[str, int], others: Sequence[int]) -> Proof:
        given = rows.at_sizes(case) if case else rows
        if batches:
            return prove_batches(source, exported, weights.arrays, given, target.here, target.precision, fill)
        facts = (source, exported[ANY_BATCH], weights.arrays, given, target.here, target.precision)
        if sequence is None:
            return prove(*facts, fill, others=others, along_batch=findings.along_batch, loss=spec.loss)
        along = frozenset(name for name, shape in shapes.items() if sequence.symbol in shape)
        padding = Padding(sequence, fill, rows.along, along)
        return prove_sequence(*facts, padding, along_batch=findings.along_batch)

    try:
        proof = together([proven(case, () if at else OTHER_BATCHES) for at, case in enumerate(cases)])
    except ExportRefused as error:
        if error.code == "JP106":  # or does it differ from itself?
            check_repeats(source, as_source(spec.fn, weights.params, outputs), rows.batch(1))
        raise
    data = {batch: serialize(each, order) for batch, each in exported.items()}
    signature = Signature(
        name=name,
        inputs=tensors,
        outputs=_outputs(proof, shapes),
        batch_symbol=symbol,
        constraints=constraints,
        pad=fill,
        program_sha256=_digest(data),
        sequence=sequence,
        rows=proof.rows,
        sizes=sizes,
        bounds=limits,
        batches=batches,
        loss=spec.loss,
        vjp_order=order,
    )
    gradient = None
    if order:
        check_differentiable(signature, weights.arrays)
        here = (rows, target.here, target.precision)
        gradient = prove_gradients(program, data[ANY_BATCH], signature, weights.arrays, *here)
    return Draft(ProvenSignature(signature, program, exported, proof), data, gradient)


def _digest(programs: Mapping[int, bytes]) -> str:
    """Of the program; of several that of a line for each, with its batch and its own digest."""
    digests = {batch: hashlib.sha256(data).hexdigest() for batch, data in programs.items()}
    if ANY_BATCH in digests:
        return digests[ANY_BATCH]
    lines = "".join(f"{batch} {digest}\n" for batch, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _cure(sequence: SequenceSpec | None) -> str:
    """What helps a function that bears no symbol as its size."""
    if sequence is not None:
        return (
            f"where the length cannot be a symbol, fix it: a number for {sequence.symbol!r}, and no sequence="
        )
    return "or have a program for each of a few batches, with --fixed-batch 1,2,4,8 or fixed_batches=(1, 2, 4, 8)"


def _bounds(
    free: Sequence[str],
    inputs: Sequence[TensorInfo],
    outputs: Mapping[str, tuple[Any, ...]],
    constraints: Sequence[str],
) -> dict[str, Bounds]:
    """Of each further symbol, and of each dimension that is made of them."""
    shapes = (*(t.shape for t in inputs), *outputs.values())
    made = [str(dim) for shape in shapes for dim in shape if symbols(dim) & set(free)]
    return bounds((*free, *made), constraints) if free else {}


def _exported(
    program: Any,
    weights: Mapping[str, np.ndarray],
    tensors: tuple[TensorInfo, ...],
    target: Target,
    constraints: tuple[str, ...],
    offer: str,
    findings: Findings,
) -> jax.export.Exported:
    """offer: what else helps where a size cannot be a symbol."""
    try:
        return export_program(program, weights, tensors, target.platforms, constraints, findings)
    except ExportRefused as error:
        if not offer or error.code not in ("JP104", "JP105"):
            raise
        raise ExportRefused(f"{error.what}; {offer}", error.code) from error


def _outputs(proof: Proof, shapes: Mapping[str, tuple[Any, ...]]) -> tuple[TensorInfo, ...]:
    golden = proof.goldens[0].outputs
    return tuple(TensorInfo(name, golden[name].dtype.name, shape) for name, shape in shapes.items())


def _lint_constants(exported: jax.export.Exported, findings: Findings) -> None:
    for kind, size in constants(exported):
        if size > CONSTANT_LIMIT:
            findings.add(
                "JP103", f"the program holds a constant of {size} bytes ({kind}), over {CONSTANT_LIMIT}"
            )
