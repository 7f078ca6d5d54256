"""Weights stored in fewer bits than the function computes in: bf16, or int8 with a scale for each channel.

The program takes the weights as they are stored, and makes them what the function expects before it begins. Only the
weights lose bits: every product is computed as before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from converters.cuts import Cut
from converters.draft import Draft
from converters.errors import BadSpec
from converters.golden import worst_error
from converters.manifest import OutputError, StoredWeights, Tolerance
from converters.program import as_source
from converters.run import to_host
from converters.spec import SignatureSpec
from converters.weights import Weights

STORED = ("bf16", "int8")
# Below this the scales and the loss cost more than the bytes that are saved.
SMALLEST = 256
SCALE = ".scale"
LARGEST_INT8 = 127  # -128 is not used: the range is symmetric
EXACT = Tolerance(0.0, 0.0, 0.0)

Arrays = Mapping[str, Any]


def parse_weights_dtype(name: str | None) -> str | None:
    """BadSpec for a dtype that weights are not stored in."""
    if name is not None and name not in STORED:
        raise BadSpec(f"--weights-dtype {name!r}: {' or '.join(STORED)} is needed")
    return name


def fewer_bits(weights: Weights, dtype: str) -> tuple[Weights, StoredWeights]:
    """The same parameters as they are stored in `dtype`, and what was done to them; errors are not in it yet.

    Of the result, `params` are those that the stored ones stand for, in the dtypes of the original. Which weights are
    stored in fewer bits follows from names, dtypes and shapes alone, so that a version with other values swaps in.
    BadSpec: a weight that int8 cannot hold, or one that has the name of a scale.
    """
    chosen = {name: w.dtype.name for name, w in weights.arrays.items() if _is_chosen(w, dtype)}
    arrays: dict[str, np.ndarray] = {}
    for name, weight in weights.arrays.items():
        if name not in chosen:
            arrays[name] = weight
        elif dtype == "bf16":
            arrays[name] = weight.astype(ml_dtypes.bfloat16)
        else:
            if name + SCALE in weights.arrays:
                raise BadSpec(
                    f"params: {name + SCALE!r} is the name that the scale of {name!r} has in int8; rename it"
                )
            arrays[name], arrays[name + SCALE] = _int8(name, weight)
    facts = StoredWeights(dtype, chosen, _bytes(weights.arrays), _bytes(arrays))

    def rebuild(flat: Arrays) -> Any:
        return weights.rebuild(restored(flat, facts))

    return Weights(rebuild(arrays), dict(sorted(arrays.items())), rebuild), facts


def restored(flat: Arrays, facts: StoredWeights) -> dict[str, Any]:
    """The weights by name in the dtypes of the original, of stored ones: numpy's or traced."""
    whole = {}
    for name, value in flat.items():
        computes_in = facts.computes_in.get(name)
        if name.endswith(SCALE) and name.removesuffix(SCALE) in facts.computes_in and facts.dtype == "int8":
            continue
        if computes_in is None:
            whole[name] = value
        elif facts.dtype == "bf16":
            whole[name] = value.astype(computes_in)
        else:
            scale = flat[name + SCALE]
            whole[name] = (value.astype(scale.dtype) * scale).astype(computes_in)
    return whole


def scale_cuts(cuts: Mapping[str, Cut], stored: Arrays) -> dict[str, Cut]:
    """How the scales of int8 are cut, of stored weights of several devices: as the channels that each is of."""
    of_scales = {}
    for name, cut in cuts.items():
        if (scale := stored.get(name + SCALE)) is not None:
            parts = zip(cut, scale.shape, strict=False)
            along = tuple(part if size > 1 else None for part, size in parts)
            if any(part is not None for part in along):
                of_scales[name + SCALE] = along
    return of_scales


def with_errors(
    facts: StoredWeights, original: Any, specs: Mapping[str, SignatureSpec], drafts: Sequence[Draft]
) -> StoredWeights:
    """`facts` with how far each output is from that of the function on the `original` params, over the goldens."""
    errors = {}
    for draft in drafts:
        name = draft.signature.name
        source = as_source(specs[name].fn, original, tuple(specs[name].outputs))
        for golden in draft.proven.proof.goldens:
            wanted = to_host(source(golden.inputs))
            for output, got in golden.outputs.items():
                found = _error(got, wanted[output])
                before = errors.get(f"{name}/{output}", found)
                errors[f"{name}/{output}"] = OutputError(
                    max(found.largest, before.largest), max(found.relative, before.relative)
                )
    for output, error in errors.items():
        if not np.isfinite(error.largest):
            raise BadSpec(
                f"--weights-dtype {facts.dtype}: {output} is no finite number where the original's is; leave it out"
            )
    return StoredWeights(facts.dtype, facts.computes_in, facts.bytes_before, facts.bytes_after, errors)


def _error(got: np.ndarray, want: np.ndarray) -> OutputError:
    """relative: to the largest value of the output, as single values may be near 0."""
    largest = worst_error(got, want, EXACT)[0]
    finite = np.abs(want[np.isfinite(want)]).astype(np.float64) if want.size else np.zeros(1)
    scale = float(finite.max(initial=0.0))
    return OutputError(largest, largest / scale if scale else 0.0)


def _is_chosen(weight: np.ndarray, dtype: str) -> bool:
    is_float = bool(jax.numpy.issubdtype(weight.dtype, np.floating))
    narrower = weight.dtype.itemsize > (2 if dtype == "bf16" else 1)
    return is_float and narrower and weight.ndim >= 2 and weight.size >= SMALLEST


def _int8(name: str, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int8 of the weight's shape, scales that multiply it back, of size 1 but along the channels)."""
    wide = np.float64 if weight.dtype == np.float64 else np.float32
    values = weight.astype(wide)
    if not np.isfinite(values).all():
        raise BadSpec(
            f"--weights-dtype int8: weight {name!r} holds NaN or infinity, which int8 has not; leave it out"
        )
    along = 0 if _is_table(name) else weight.ndim - 1
    others = tuple(axis for axis in range(weight.ndim) if axis != along)
    scale = np.abs(values).max(axis=others, keepdims=True) / wide(LARGEST_INT8)
    scale = np.where(scale > 0, scale, wide(1))  # a channel of zeros
    return np.clip(np.rint(values / scale), -LARGEST_INT8, LARGEST_INT8).astype(np.int8), scale.astype(wide)


def _is_table(name: str) -> bool:
    """Whether rows are looked up, by the name that libraries give an embedding."""
    return "embed" in name.lower()


def _bytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())
