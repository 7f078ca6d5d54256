"""What an export has to show of a function that it has a program for at each of a few batches, and at no other.

A server runs 3 rows in the program for 4, and 9 in those for 8 and 1: the function called with those very rows has to
answer the same. So it is, at each size by itself, for every number of rows up to EVERY, and above that for rows between two
sizes and above the largest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.export
import numpy as np

from converters.errors import ExportRefused
from converters.example import Example
from converters.golden import Golden
from converters.lint.rules import refusal
from converters.proof import Proof, Subject, compare, golden_of, jitted, readable
from converters.row_proof import BITWISE, TOLERANCE, check_rows
from converters.run import Run, compiled_runner, in_batches

# Up to so many, every number of rows is tried; above, those that a batch has one more of: each costs a compile.
EVERY = 8

Programs = Mapping[int, jax.export.Exported]


def prove_batches(subject: Subject, example: Example, pad: Mapping[str, float]) -> Proof:
    """As `prove`, of a program for each batch. ExportRefused, also for a function that cannot be called with other rows."""
    programs = subject.programs
    run_source = _of_any_rows(jitted(subject.source), tuple(programs))
    runs = {batch: compiled_runner(exported, subject.weights) for batch, exported in programs.items()}
    run = in_batches(runs, pad)
    goldens = [golden_of(run_source, example.batch(rows)) for rows in (1, ragged(tuple(programs)))]
    tolerances = subject.tolerances(goldens[-1])
    own, share, alike = tolerances[subject.platform], 0.0, BITWISE
    # The programs as they are before what depends on the batch, and that before padding: the nearest rule is named.
    for rows in programs:
        share = max(share, compare(run, golden_of(run_source, example.batch(rows)), own))
    for batch in programs:
        alone = in_batches({batch: runs[batch]}, pad)
        few = _first(goldens[-1], max(1, min(goldens[-1].batch, batch - 1)))
        if _alike(alone, few, own, pad, batch) != BITWISE:
            alike = TOLERANCE
    padded = (golden_of(run_source, example.batch(rows)) for rows in sorted(_between(tuple(programs))))
    for golden in (*goldens, *padded):
        share = max(share, compare(run, golden, own))
    return Proof(tuple(goldens), tolerances, share, alike)


def _alike(run: Run, golden: Golden, own: Any, pad: Mapping[str, float], batch: int) -> str:
    try:
        return check_rows(run, golden, own, pad, batch=batch)
    except ExportRefused as error:
        raise ExportRefused(f"in the program for batch {batch}: {error.what}", error.code) from error


def ragged(batches: Sequence[int]) -> int:
    """Rows of a golden that are padded, if any can be: 3, or the nearest that is no batch and below the largest."""
    between = [rows for rows in range(2, max(batches)) if rows not in batches]
    return min(between, key=lambda rows: abs(rows - 3), default=3)


def _between(batches: Sequence[int]) -> set[int]:
    """Rows that are padded or split and in no golden: all up to EVERY, a batch with one row missing, and one row more than any."""
    largest = max(batches)
    rows = {*range(2, min(EVERY, largest)), *(batch - 1 for batch in batches), largest + 1}
    return rows - {0, 1, ragged(batches), *batches}


def _of_any_rows(run: Run, batches: Sequence[int]) -> Run:
    def called(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return run(inputs)
        except ExportRefused as error:
            rows = len(next(iter(inputs.values())))
            if rows in batches:
                raise
            cure = f"called with {rows} rows it has to answer too, as the proof compares that with what padding gives"
            raise ExportRefused(f"{error.what}; {cure}", error.code) from error

    return called


def _first(golden: Golden, rows: int) -> Golden:
    """Its first rows, which have the same answers among others as by themselves, or the proof fails."""
    inputs, outputs = (
        {name: value[:rows] for name, value in side.items()} for side in (golden.inputs, golden.outputs)
    )
    return replace(golden, batch=rows, inputs=inputs, outputs=outputs)


def fixed_outputs(programs: Programs, names: Sequence[str], symbol: str) -> dict[str, tuple[Any, ...]]:
    """Shapes of the outputs by name, with `symbol` for the batch; ExportRefused where one does not have it first, and
    there alone.
    """
    shapes: dict[str, tuple[Any, ...]] = {}
    for batch, exported in programs.items():
        avals = jax.tree.unflatten(exported.out_tree, exported.out_avals)
        for name in names:
            readable(name, avals[name].dtype)
            shape = tuple(map(int, avals[name].shape))
            if shape[:1] != (batch,) or shapes.setdefault(name, (symbol, *shape[1:]))[1:] != shape[1:]:
                raise refusal(
                    "JP109",
                    f"output {name!r} has shape {list(shape)} in a batch of {batch}, and its first dimension must be the "
                    "batch and no other may change with it",
                )
    return shapes
