"""What a server takes for granted of rows: the answer of one does not change with its place, nor with the rows beside it.

Strange rows are put around the goldens' own: noise, NaN, values far beyond the example's, the padding of a server, copies.
Each finds what another hides: a NaN that is swallowed, a maximum that noise does not reach, a weight below the tolerance.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import ml_dtypes
import numpy as np

from converters.errors import GoldenMismatch
from converters.golden import Golden, check_outputs, is_exact
from converters.lint.rules import refusal
from converters.manifest import ANY_BATCH, ROWS, Tolerance
from converters.run import Run

PADDED_BATCH = 7
LARGE_BATCH = 64
# Where a batch of 64 takes MOST_BYTES more memory than one row, a smaller one has to do: still above every bucket up to 32, and
# where that is too much as well, above those up to 16 or 8. The last is tried in any case.
SMALLER_BATCHES = (33, 17, 9)
MOST_BYTES = 320 << 20
# For a program that does something along its batch, and may treat a larger one apart; within the same bound.
LARGER_BATCHES = (257, 1025)
_, BITWISE, TOLERANCE = ROWS

Fill = Callable[[np.ndarray, int], np.ndarray]


def check_rows(
    run: Run,
    golden: Golden,
    tolerances: Mapping[str, Tolerance],
    pad: Mapping[str, float] | None = None,
    *,
    large: Sequence[int] = (LARGE_BATCH,),
    batch: int = ANY_BATCH,
) -> str:
    """BITWISE where no stranger changed a bit of the golden rows at the same places, else TOLERANCE.

    pad: what a server fills a batch with, by input. large: batches that stand for those that the goldens are not of, as
    `large_batches` chooses them. batch: the only one that the program is for, at least as many as the golden's; `run`
    fills up to it. Of ANY_BATCH several are tried.
    ExportRefused where a row's answer changes with its place (JP108) or with what stands before or after it (JP107).
    """
    padded = batch or PADDED_BATCH
    proof = _Rows(run, golden, tolerances, padded)
    proof.alone()
    bitwise = True
    fills = {name: _fills((pad or {}).get(name, 0)) for name in golden.inputs}
    for start in (0, padded - golden.batch):
        first: dict[str, np.ndarray] | None = None
        for kind in next(iter(fills.values())):
            others = {name: fills[name][kind](a, padded) for name, a in golden.inputs.items()}
            side = "after" if start == 0 else "before"
            got = proof.among(others, (start,), f"with {kind} rows {side} them")
            first = first or got
            bitwise = bitwise and all(got[name].tobytes() == first[name].tobytes() for name in got)
    for size in (batch,) if batch else large:
        copies = {name: np.resize(a, (size, *a.shape[1:])) for name, a in golden.inputs.items()}
        proof.among(copies, range(0, size - golden.batch + 1, golden.batch), f"{size} copies of them")
        mixed = {name: _mixed(a, size, fills[name]) for name, a in golden.inputs.items()}
        proof.among(mixed, _apart(size, golden.batch), f"among {size} strange rows")
    return BITWISE if bitwise else TOLERANCE


def large_batches(working_bytes: Callable[[int], int], *, along_batch: bool) -> tuple[int, ...]:
    """Batches at which rows are put among many: LARGE_BATCH where memory allows, else a smaller one, and of LARGER_BATCHES
    what memory allows for a program that does something along its batch. working_bytes: of a run, by batch.

    What one row takes is needed anyway: it may be weights that are made whole inside the program.
    """

    def fits(size: int) -> bool:
        return large_fits(working_bytes, size)

    first = next((size for size in (LARGE_BATCH, *SMALLER_BATCHES[:-1]) if fits(size)), SMALLER_BATCHES[-1])
    return (first, *takewhile(fits, LARGER_BATCHES if along_batch else ()))


def large_fits(working_bytes: Callable[[int], int], size: int) -> bool:
    """Whether a batch takes no more than MOST_BYTES beside what one row takes."""
    return working_bytes(size) - working_bytes(1) <= MOST_BYTES


class _Rows:
    def __init__(self, run: Run, golden: Golden, tolerances: Mapping[str, Tolerance], padded: int) -> None:
        self._run, self._golden, self._tolerances, self._padded = run, golden, tolerances, padded

    def alone(self) -> None:
        """Each row is a batch of its own."""
        for row in range(self._golden.batch):
            got = self._run({name: array[row : row + 1] for name, array in self._golden.inputs.items()})
            self._same(got, slice(row, row + 1), f"row {row} alone")

    def among(
        self, others: Mapping[str, np.ndarray], places: Sequence[int], how: str
    ) -> dict[str, np.ndarray]:
        """The answers at the last of the places where the golden rows are put in a batch of `others`."""
        batch, own = {name: array.copy() for name, array in others.items()}, {}
        for place in places:
            for name, rows in self._golden.inputs.items():
                batch[name][place : place + self._golden.batch] = rows
        outputs = self._run(batch)
        for place in places:
            own = {name: value[place : place + self._golden.batch] for name, value in outputs.items()}
            self._same(own, slice(None), how)
        return own

    def _same(self, got: Mapping[str, np.ndarray], rows: slice, how: str) -> None:
        want = {name: value[rows] for name, value in self._golden.outputs.items()}
        what = f"the rows of a batch depend on each other or on their place: {how}"
        try:
            check_outputs(got, want, self._tolerances, what)
        except GoldenMismatch as error:
            raise refusal("JP108" if self._depends_on_place() else "JP107", str(error)) from error

    def _depends_on_place(self) -> bool:
        """Among copies of itself a row meets nobody else, and can only differ by where it stands."""
        one = {name: np.repeat(array[:1], self._padded, 0) for name, array in self._golden.inputs.items()}
        outputs = self._run(one)
        want = {name: np.repeat(value[:1], self._padded, 0) for name, value in outputs.items()}
        try:
            check_outputs(outputs, want, self._tolerances, "")
        except GoldenMismatch:
            return True
        return False


def _apart(size: int, rows: int) -> list[int]:
    """Where `rows` stand in a batch of `size` without touching: second, in the middle, last, as far as there is room."""
    places: list[int] = []
    for place in (1, size // 2, size - rows):
        if place <= size - rows and (not places or place >= places[-1] + rows):
            places.append(place)
    return places or [0]


def _fills(pad: float) -> dict[str, Fill]:
    """Strange rows of the kind of the rows given, by what they are."""
    return {
        "random": random_rows,
        "NaN": lambda rows, count: _filled(rows, count, 0 if is_exact(rows.dtype) else np.nan),
        "padding": lambda rows, count: _filled(rows, count, pad),
        "large": _large_rows,
        "huge": _huge_rows,
    }


def _mixed(rows: np.ndarray, count: int, fills: Mapping[str, Fill]) -> np.ndarray:
    """Rows of every kind by turns, but no NaN: it would hide what the others show."""
    used = [fill for kind, fill in fills.items() if kind != "NaN"]
    each = -(-count // len(used))
    kinds = [
        fill(rows, each) for fill in used
    ]  # from its first on: what alternates within a kind is to alternate here
    return np.stack([kinds[at % len(kinds)][at // len(kinds)] for at in range(count)])


def random_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Other values of the same range: an id stays an id."""
    generator = np.random.default_rng(0)
    picked = generator.permuted(np.resize(rows, (count, *rows.shape[1:])).reshape(count, -1), axis=1)
    if not is_exact(rows.dtype):
        picked = (picked.astype(np.complex64) * 3 + generator.normal(size=picked.shape)).real.astype(
            rows.dtype
        )
    return picked.reshape(count, *rows.shape[1:])


def _filled(rows: np.ndarray, count: int, value: float) -> np.ndarray:
    return np.full((count, *rows.shape[1:]), value, rows.dtype)


def _large_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Integers stay near: they may be counts of a loop."""
    if rows.dtype.kind in "iu":
        return _filled(rows, count, min(int(rows.max(initial=0)) * 4 + 100, np.iinfo(rows.dtype).max))
    return _filled(rows, count, 1 if rows.dtype.kind == "b" else min(1e4, _far(rows.dtype)))


def _huge_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Floats of both signs, that do not cancel, so far off that a share of a millionth shows."""
    if is_exact(rows.dtype):
        return _filled(rows, count, -1 if rows.dtype.kind == "i" else 0)
    turns = np.arange(count).reshape(-1, *(1,) * (rows.ndim - 1))
    values = _far(rows.dtype) * (1 - turns % 2 * 2) / (1.0 + turns)
    return np.broadcast_to(values, (count, *rows.shape[1:])).astype(rows.dtype)


def _far(dtype: np.dtype) -> float:
    """The largest whose square is finite."""
    real = np.dtype(np.float32) if dtype.kind == "c" else dtype
    return math.sqrt(float(ml_dtypes.finfo(real).max))
