"""One signature on its way into a bundle: its function traced, exported and proven, and lying nowhere yet."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.export

from converters.batch_proof import fixed_outputs, prove_batches
from converters.declared import Declared, declare
from converters.dims import symbols
from converters.errors import ExportRefused
from converters.example import Example
from converters.formats import ProvenSignature
from converters.gradient_proof import GradientProof, check_differentiable, prove_gradients, serialize
from converters.lint.findings import Findings
from converters.manifest import ANY_BATCH, Signature, TensorInfo, at_batch, combinations
from converters.placement import Placement, place
from converters.program import Program, Source, as_program, as_source, constants, export_program
from converters.proof import (
    OTHER_BATCHES,
    Proof,
    Subject,
    batch_outputs,
    check_repeats,
    loss_outputs,
    prove,
    together,
)
from converters.sequence_proof import Padding, prove_sequence
from converters.spec import SignatureSpec
from converters.symbols import Bounds, bounds, tried
from converters.weights import Weights

CONSTANT_LIMIT = 64 << 10


@dataclass(frozen=True)
class Target:
    """Where the programs of a bundle are to run. here: this machine's platform, which is one of `platforms`.

    precision: JAX's name of the precision of products, "default" unless it was raised. placement: of the weights, where
    the programs are for several devices.
    """

    platforms: tuple[str, ...]
    here: str
    precision: str
    placement: Placement | None = None


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


class Drafter:
    """Exports signatures of one set of weights, and proves each on this machine. findings: of all of them together."""

    def __init__(self, weights: Weights, target: Target, findings: Findings) -> None:
        self._weights, self._target, self._findings = weights, target, findings
        self.on_device: Mapping[str, jax.Array] = place(weights.arrays, target.placement)

    def draft(self, name: str, spec: SignatureSpec) -> Draft:
        """The signature that `spec` declares. Raises BadSpec, ExportRefused."""
        declared = declare(spec)
        program = as_program(spec.fn, self._weights.rebuild, declared.outputs)
        exported = {batch: self._exported(program, declared, batch) for batch in declared.programs}
        shapes = _shapes(exported, declared)
        for each in exported.values():
            _lint_constants(each, self._findings)
        limits = _bounds(declared, shapes)
        source = partial(as_source, spec.fn, self._weights.params, declared.outputs)
        target, along = self._target, self._findings.along_batch
        subject = Subject(source(), exported, self.on_device, target.here, target.precision, along)
        proof = _prove(subject, declared, shapes, limits, source)
        data = {batch: serialize(each, declared.order) for batch, each in exported.items()}
        signature = Signature(
            name=name,
            inputs=declared.inputs,
            outputs=_outputs(proof, shapes),
            batch_symbol=declared.symbol,
            constraints=declared.all_constraints,
            pad=declared.pad,
            program_sha256=_digest(data),
            sequence=declared.sequence,
            rows=proof.rows,
            sizes=declared.sizes,
            bounds=limits,
            batches=declared.batches,
            loss=declared.loss,
            vjp_order=declared.order,
        )
        gradient = None
        if declared.order:
            check_differentiable(signature, self._weights.arrays)
            gradient = prove_gradients(program, data[ANY_BATCH], signature, subject, declared.example)
        return Draft(ProvenSignature(signature, program, exported, proof), data, gradient)

    def _exported(self, program: Program, declared: Declared, batch: int) -> jax.export.Exported:
        try:
            return export_program(
                program,
                self._weights.arrays,
                at_batch(declared.inputs, batch),
                self._target.platforms,
                declared.all_constraints,
                self._findings,
                self._target.placement,
            )
        except ExportRefused as error:
            if not declared.cure or error.code not in ("JP104", "JP105"):
                raise
            raise ExportRefused(f"{error.what}; {declared.cure}", error.code) from error


def _shapes(exported: Mapping[int, jax.export.Exported], declared: Declared) -> Mapping[str, tuple[Any, ...]]:
    """Of the outputs, by name."""
    if declared.loss:
        return loss_outputs(exported[ANY_BATCH], declared.outputs)
    if declared.batches:
        return fixed_outputs(exported, declared.outputs, declared.symbol)
    sequence = declared.sequence and declared.sequence.symbol
    return batch_outputs(exported[ANY_BATCH], declared.outputs, declared.symbol, sequence, declared.free)


def _prove(
    subject: Subject,
    declared: Declared,
    shapes: Mapping[str, tuple[Any, ...]],
    limits: Mapping[str, Bounds],
    source: Callable[[], Source],
) -> Proof:
    """At each choice of sizes that is served, or at a few of those that there may be. source: the function traced anew."""
    example, further = declared.example, declared.constraints
    if declared.sizes or not declared.free:
        cases = combinations(declared.sizes, further)
    else:
        cases = tried(example.sizes, limits, further)
    proofs = []
    try:
        for at, case in enumerate(cases):
            rows = example.at_sizes(case) if case else example
            proofs.append(_proof(subject, declared, shapes, rows, () if at else OTHER_BATCHES))
    except ExportRefused as error:
        if error.code == "JP106":  # or does it differ from itself?
            check_repeats(subject.source, source(), example.batch(1))
        raise
    return together(proofs)


def _proof(
    subject: Subject,
    declared: Declared,
    shapes: Mapping[str, tuple[Any, ...]],
    rows: Example,
    others: Sequence[int],
) -> Proof:
    if declared.batches:
        return prove_batches(subject, rows, declared.pad)
    if (sequence := declared.sequence) is None:
        return prove(subject, rows, declared.pad, others=others, loss=declared.loss)
    along = frozenset(name for name, shape in shapes.items() if sequence.symbol in shape)
    return prove_sequence(subject, rows, Padding(sequence, declared.pad, rows.along, along))


def _digest(programs: Mapping[int, bytes]) -> str:
    """Of the program; of several that of a line for each, with its batch and its own digest."""
    digests = {batch: hashlib.sha256(data).hexdigest() for batch, data in programs.items()}
    if ANY_BATCH in digests:
        return digests[ANY_BATCH]
    lines = "".join(f"{batch} {digest}\n" for batch, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _bounds(declared: Declared, outputs: Mapping[str, tuple[Any, ...]]) -> dict[str, Bounds]:
    """Of each further symbol, and of each dimension that is made of them."""
    free = declared.free
    shapes = (*(t.shape for t in declared.inputs), *outputs.values())
    made = [str(dim) for shape in shapes for dim in shape if symbols(dim) & set(free)]
    return bounds((*free, *made), declared.all_constraints) if free else {}


def _outputs(proof: Proof, shapes: Mapping[str, tuple[Any, ...]]) -> tuple[TensorInfo, ...]:
    golden = proof.goldens[0].outputs
    return tuple(TensorInfo(name, golden[name].dtype.name, shape) for name, shape in shapes.items())


def _lint_constants(exported: jax.export.Exported, findings: Findings) -> None:
    for kind, size in constants(exported):
        if size > CONSTANT_LIMIT:
            findings.add(
                "JP103", f"the program holds a constant of {size} bytes ({kind}), over {CONSTANT_LIMIT}"
            )
