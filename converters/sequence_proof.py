"""What an export has to show of a sequence before it is published: that padding behind a row's end changes no answer.

A server puts rows of several lengths into one bucket. Goldens come from the source function at the rows' own lengths; the
program gets them padded, as a server pads them, and must give the same up to their ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from converters.errors import GoldenMismatch
from converters.example import Example
from converters.golden import Golden, check_outputs
from converters.lint.rules import refusal
from converters.manifest import SequenceSpec, Tolerance
from converters.proof import (
    GOLDEN_BATCHES,
    Proof,
    Subject,
    compare,
    golden_of,
    jitted,
)
from converters.row_proof import LARGE_BATCH, check_rows, large_batches
from converters.run import Run, compiled_runner

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Padding:
    """How rows are padded and answers cut. pad: the value, by input. inputs, outputs: those that have the sequence."""

    sequence: SequenceSpec
    pad: Mapping[str, float]
    inputs: frozenset[str]
    outputs: frozenset[str]

    def padded(self, inputs: Arrays, length: int) -> dict[str, np.ndarray]:
        """The rows with sequences of `length`, which is theirs or longer."""
        return {
            name: _padded(array, length, self.pad[name]) if name in self.inputs else array
            for name, array in inputs.items()
        }

    def cut(self, outputs: Arrays, length: int) -> dict[str, np.ndarray]:
        """What the outputs hold up to `length`."""
        return {name: value[:, :length] if name in self.outputs else value for name, value in outputs.items()}

    def bucket(self, length: int) -> int:
        """What rows of this length are padded to."""
        return next(size for size in self.sequence.lengths if size >= length)


def golden_lengths(sequence: SequenceSpec) -> tuple[int, ...]:
    """For each length that rows are padded to, one that is shorter than it and longer than the next, ascending."""
    buckets = sequence.lengths
    return tuple(
        min((below + bucket) // 2 | 1, bucket) for below, bucket in zip((0, *buckets), buckets, strict=False)
    )


def prove_sequence(subject: Subject, example: Example, padding: Padding) -> Proof:
    """As `prove`, for a signature with a sequence: at several lengths, alone, padded, and side by side."""
    run_source, sizes = jitted(subject.source), example.sizes
    run_program = compiled_runner(subject.program, subject.weights)
    longest = example.at_length(padding.sequence.most)
    batch = golden_of(run_source, longest.batch(GOLDEN_BATCHES[-1]), padding.sequence.most, sizes)
    tolerances = subject.tolerances(batch)
    here, share = tolerances[subject.platform], 0.0
    rows = [
        golden_of(run_source, _row(example.at_length(length), at), length, sizes)
        for at, length in enumerate(golden_lengths(padding.sequence))
    ]
    # Where a stride or a window of two begins, and where the least is padded.
    edges = sorted({1, min(2, padding.sequence.most), max(1, padding.sequence.most - 1)})
    short = [golden_of(run_source, _row(example.at_length(length), 0), length, sizes) for length in edges]
    many = example.at_length(rows[0].length).batch(LARGE_BATCH)
    for golden in (short[0], golden_of(run_source, many, rows[0].length, sizes), batch):
        share = max(share, compare(run_program, golden, here))
    share = max(share, check_padding(run_program, (*short, *rows), padding, here))
    large = large_batches(
        lambda rows: run_program.working_bytes(longest.batch(rows)), along_batch=subject.along_batch
    )
    alike = check_rows(run_program, batch, here, padding.pad, large=large)
    return Proof((*rows, batch), tolerances, share, alike)


def check_padding(
    run: Run, rows: Sequence[Golden], padding: Padding, tolerances: Mapping[str, Tolerance]
) -> float:
    """The worst error as a share of its tolerance. ExportRefused where a row's answer changes with what is padded
    behind its end, or with longer rows beside it.
    """
    most, share = padding.sequence.most, 0.0
    for golden in rows:
        for length in sorted({padding.bucket(golden.length), most}):
            got = padding.cut(run(padding.padded(golden.inputs, length)), golden.length)
            share = max(
                share, _same(got, golden, tolerances, f"padded from length {golden.length} to {length}")
            )
    padded = [padding.padded(golden.inputs, most) for golden in rows]
    together = run({name: np.concatenate([each[name] for each in padded]) for name in padded[0]})
    for at, golden in enumerate(rows):
        own = {name: value[at : at + 1] for name, value in together.items()}
        how = f"a row of length {golden.length} beside longer ones"
        share = max(share, _same(padding.cut(own, golden.length), golden, tolerances, how))
    return share


def _same(got: Arrays, golden: Golden, tolerances: Mapping[str, Tolerance], how: str) -> float:
    try:
        return check_outputs(got, golden.outputs, tolerances, f"the answer changes with padding: {how}")
    except GoldenMismatch as error:
        raise refusal("JP112", str(error)) from error


def _row(example: Example, at: int) -> dict[str, np.ndarray]:
    """One row, another one for each `at`."""
    return {name: array[at : at + 1] for name, array in example.batch(at + 1).items()}


def _padded(array: np.ndarray, length: int, value: float) -> np.ndarray:
    padded = np.full((len(array), length, *array.shape[2:]), value, array.dtype)
    padded[:, : array.shape[1]] = array
    return padded
