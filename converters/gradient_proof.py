"""What an export has to show of gradients before it is published: that they are those of the source function."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.export
import numpy as np

from converters.errors import BadSpec, GoldenMismatch
from converters.example import Example
from converters.golden import Golden, check_outputs
from converters.gradient import (
    GROUPS,
    Gradients,
    cotangents_of,
    differentiable,
    gradient_golden,
    gradients,
    is_floating,
)
from converters.lint.rules import refusal
from converters.lint.tracing import trace_or_refuse
from converters.manifest import Signature, Tolerance
from converters.program import Program, no_source_locations
from converters.proof import Subject, share_for

Arrays = Mapping[str, np.ndarray]
# A gradient is a longer chain of sums than what it is of, by this factor at most and up to this share.
LONGER, MOST_SHARE = 10, 0.1
# Of the scale of the largest gradient: where one is nothing but rounding, as that of a bias that cancels out.
SMALLEST = 0.1


@dataclass(frozen=True)
class GradientProof:
    """golden: for one batch. tolerances: by platform and group, "weights" and "inputs"."""

    golden: Golden
    tolerances: Mapping[str, Mapping[str, Tolerance]]


def serialize(exported: jax.export.Exported, order: int) -> bytes:
    """The bytes of a program with those of its gradients up to `order`. ExportRefused where it has none."""
    with no_source_locations():
        return bytes(trace_or_refuse(lambda: exported.serialize(vjp_order=order), lambda: "JP121"))


def check_order(order: object) -> int:
    """BadSpec for what is no order of gradients."""
    if not isinstance(order, int) or isinstance(order, bool) or order < 0:
        raise BadSpec(f"vjp_order: {order!r}; 0 (no gradients), 1 (gradients) or more (theirs) is needed")
    return order


def check_differentiable(signature: Signature, weights: Arrays) -> None:
    """BadSpec where nothing of the signature has a gradient."""
    if not any(is_floating(t.dtype) for t in signature.outputs):
        raise BadSpec(
            f"vjp_order: no output is of floating point ({', '.join(map(str, signature.outputs))}), so there is no "
            "gradient; give one that is, as logits beside classes, or vjp_order=0"
        )
    if not any(is_floating(each) for each in (*(t.dtype for t in signature.inputs), *_dtypes(weights))):
        raise BadSpec(
            "vjp_order: neither a weight nor an input is of floating point, so there is no gradient; give vjp_order=0"
        )


def prove_gradients(
    program: Program,
    data: bytes,
    signature: Signature,
    subject: Subject,
    example: Example,
) -> GradientProof:
    """The source function's gradients and the program's side by side; ExportRefused where they differ.

    program: the source as a function of two dicts, traced anew under plain jit at each size. data: the program's bytes,
    as whoever loads it gets them.
    """
    exported = jax.export.deserialize(bytearray(data))
    call = differentiable(exported, signature.vjp_order)
    of_source, of_program = gradients(program), gradients(call)
    weights, outputs_of = subject.weights, jax.jit(program)
    sequence = signature.sequence

    def shown(rows: int, length: int) -> GradientProof:
        inputs = (example.at_length(length) if length else example).batch(rows)
        outputs = {name: np.asarray(value) for name, value in outputs_of(weights, inputs).items()}
        arguments = (weights, inputs, cotangents_of(signature.outputs, outputs))
        want = trace_or_refuse(lambda: of_source(*arguments))
        golden = gradient_golden(inputs, arguments[2], want, length)
        tolerances = {p: tolerances_for(want, signature, p, subject.precision) for p in exported.platforms}
        _compare(of_program(*arguments), want, tolerances[subject.platform], golden.size)
        return GradientProof(golden, tolerances)

    shown(1, 0 if sequence is None else sequence.most)
    return shown(3, 0 if sequence is None else sequence.most // 2 or 1)


def _compare(got: Gradients, want: Gradients, tolerances: Mapping[str, Tolerance], size: str) -> None:
    for group in GROUPS:
        found, expected = (
            {name: np.asarray(array) for name, array in getattr(each, group).items()} for each in (got, want)
        )
        if not expected:
            continue
        what = f"the gradient of the program by its {group} at {size}"
        try:
            check_outputs(found, expected, dict.fromkeys(expected, tolerances[group]), what)
        except GoldenMismatch as error:
            raise refusal("JP122", str(error)) from error


def tolerances_for(
    found: Gradients, signature: Signature, platform: str, precision: str
) -> dict[str, Tolerance]:
    """By group. A share of the largest gradient of the group, as coarse as the coarsest dtype on the way."""
    of_outputs = [t.dtype for t in signature.outputs if is_floating(t.dtype)]
    tolerances = {}
    for group in GROUPS:
        arrays = [np.asarray(array) for array in getattr(found, group).values()]
        if not arrays:
            continue
        dtypes = {*of_outputs, *_dtypes(found.weights), *_dtypes(found.inputs)}
        share = max(share_for(dtype, platform, precision) for dtype in dtypes)
        share = max(share, min(LONGER * share, MOST_SHARE))
        scale = max(_scale(array) for array in arrays)
        tolerances[group] = Tolerance(atol=SMALLEST * share * scale, rtol=share, wrong=scale)
    return tolerances


def _dtypes(arrays: Mapping[str, np.ndarray]) -> set[str]:
    return {np.dtype(array.dtype).name for array in arrays.values()}


def _scale(array: np.ndarray) -> float:
    wide = np.abs(array.astype(np.complex128))
    return float(np.where(np.isfinite(wide), wide, 0.0).max(initial=0.0))
