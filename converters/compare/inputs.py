"""What every way is given: rows made from the goldens', and how many tokens one of them is."""

from collections.abc import Mapping

import numpy as np

from converters.bundle import Bundle
from converters.errors import BadSpec
from converters.example import Example
from converters.golden import Golden
from converters.manifest import ANY_BATCH, Signature


def batches_of(
    bundle: Bundle, signature: Signature, sizes: tuple[int, ...]
) -> dict[int, dict[str, np.ndarray]]:
    """Inputs by batch, of the goldens' kind; sequences are as long as the goldens' longest.

    BadSpec: the signature has no program for a batch.
    """
    if ANY_BATCH not in signature.programs:
        for size in sizes:
            if size not in signature.programs:
                has = ",".join(map(str, sorted(signature.programs)))
                raise BadSpec(
                    f"--batches {size}: {bundle.path} has programs for batches {has} alone; choose of those"
                )
    richest = max(goldens_of(bundle, signature.name), key=lambda golden: golden.batch)
    return {size: Example(richest.inputs).batch(size) for size in sizes}


def goldens_of(bundle: Bundle, signature: str) -> tuple[Golden, ...]:
    """The signature's goldens; of a sequence those of the greatest length, which is the one that is measured."""
    goldens = bundle.goldens(signature)
    longest = max(golden.length for golden in goldens)
    return tuple(golden for golden in goldens if golden.length == longest)


def tokens_per_row(bundle: Bundle, signature: Signature, batch: Mapping[str, np.ndarray]) -> int | None:
    """The length of a row where a row is a sequence: one that is declared, or what a language model takes."""
    if signature.sequence is not None:
        along = [t.name for t in signature.inputs if signature.sequence.symbol in t.shape]
        return int(batch[along[0]].shape[1])
    usage = bundle.manifest.usage
    if usage.get("task") != "next_token":
        return None
    tokens = batch.get(usage.get("input", "tokens"))
    return int(tokens.shape[1]) if tokens is not None and tokens.ndim > 1 else None
