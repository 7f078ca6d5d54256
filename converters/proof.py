"""What an export has to show before it is published: that the program answers as the function does.

Goldens come from the source function under plain jit at concrete shapes. The program is compiled at the same shapes,
compared, and then padded: the rows of a request may not change with what stands in the rows beside them.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import ml_dtypes
import numpy as np

from converters.dims import symbols
from converters.errors import BadSpec, GoldenMismatch
from converters.example import Example
from converters.golden import Golden, check_outputs, is_exact
from converters.lint.rules import refusal
from converters.lint.tracing import trace_or_refuse
from converters.manifest import ANY_BATCH, Tolerance
from converters.program import Source
from converters.row_proof import BITWISE, TOLERANCE, check_rows, large_batches, large_fits, random_rows
from converters.run import Run, Runner, compiled_runner, to_host
from converters.spec import whole_bytes

GOLDEN_BATCHES = (1, 3)  # one row alone, and one that no bucket fits
OTHER_BATCHES = (2, 7)  # and the large one of row_proof

# A share of the output's scale that two correct machines may differ by. On cuda float32 products run in TF32
# (10 bits of mantissa) unless the precision is raised.
SHARES = {"float64": 1e-12, "float32": 1e-5, "complex64": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
TF32_SHARE = 5e-3
COARSE_SHARE = 0.25  # eight bits and fewer
# Rounding alone takes so many units in the last place: answers of rows that are closer tell nothing of a wrong one.
ROUNDING = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proof:
    """The goldens, the tolerances per platform and output, and the worst error seen as a share of its tolerance.

    rows: BITWISE or TOLERANCE of row_proof; of a loss, which has none, nothing.
    """

    goldens: tuple[Golden, ...]
    tolerances: Mapping[str, Mapping[str, Tolerance]]
    worst_share: float
    rows: str = ""


@dataclass(frozen=True)
class Subject:
    """What is proven, and where. source: the function on the params it came with. programs: of it, by batch. weights: on
    the device. platform: this machine's. precision: as the manifest says it. along_batch: as large_batches has it.
    """

    source: Source
    programs: Mapping[int, jax.export.Exported]
    weights: Mapping[str, jax.Array]
    platform: str
    precision: str
    along_batch: bool = False

    @property
    def program(self) -> jax.export.Exported:
        """The one that takes any batch."""
        return self.programs[ANY_BATCH]

    def tolerances(self, golden: Golden) -> dict[str, dict[str, Tolerance]]:
        """By platform and output."""
        platforms = next(iter(self.programs.values())).platforms
        return {platform: tolerances_for(golden, platform, self.precision) for platform in platforms}


def prove(
    subject: Subject,
    example: Example,
    pad: Mapping[str, float],
    *,
    others: Sequence[int] = OTHER_BATCHES,
    loss: bool = False,
) -> Proof:
    """Runs the function and the program side by side on this machine.

    pad: as check_rows has it. others: batches at which they are compared besides, and at a large one.
    loss: the answer is one number for the batch, so no row has one of its own.
    ExportRefused where the two differ, or rows depend on each other.
    """
    run_source = jitted(subject.source)
    run_program = compiled_runner(subject.program, subject.weights)
    large = large_batches(
        lambda rows: run_program.working_bytes(example.batch(rows)), along_batch=subject.along_batch
    )
    besides = _besides(others, large[0], run_program, example) if others else ()
    goldens, more = (
        tuple(golden_of(run_source, example.batch(rows), sizes=example.sizes) for rows in batches)
        for batches in (GOLDEN_BATCHES, besides)
    )
    tolerances = subject.tolerances(goldens[-1])
    own, share = tolerances[subject.platform], 0.0
    for golden in (*goldens, *more):
        share = max(share, compare(run_program, golden, own))
    if loss:
        return Proof(goldens, tolerances, share)
    rows = check_rows(run_program, goldens[-1], own, pad, large=large)
    if silent(goldens[-1]):
        share = max(share, _with_noise(subject, run_source, run_program, goldens[-1], pad, large))
    return Proof(goldens, tolerances, share, rows)


def _besides(others: Sequence[int], large: int, run: Runner, example: Example) -> tuple[int, ...]:
    """Batches at which function and program are compared besides the goldens': also that of the example itself, which
    has to fit as large ones have.
    """
    known, given = {*GOLDEN_BATCHES, *others, large}, example.rows
    fits = given < large or large_fits(lambda rows: run.working_bytes(example.batch(rows)), given)
    return (*others, large, *(() if given in known or not fits else (given,)))


def silent(golden: Golden) -> set[str]:
    """Outputs that are the same in every row of the golden but for rounding, so that a row which is wrong does not show."""
    return {
        name
        for name, value in golden.outputs.items()
        if value.size and _distances(value).max(initial=0.0) <= _hidden(value)
    }


def _with_noise(
    subject: Subject,
    run_source: Run,
    run_program: Runner,
    golden: Golden,
    pad: Mapping[str, float],
    large: Sequence[int],
) -> float:
    """The proof once more with rows of noise, where the example's own show nothing; the worst share of what is allowed."""
    inputs = {name: random_rows(array, golden.batch) for name, array in golden.inputs.items()}
    noise = golden_of(run_source, inputs, sizes=golden.sizes)
    own = subject.tolerances(noise)[subject.platform]
    share = compare(run_program, noise, own)
    check_rows(run_program, noise, own, pad, large=large)
    if still := sorted(silent(golden) & silent(noise)):
        log.warning(
            "output %s: every row that was tried has one answer, so no golden shows a row that is wrong; give an example "
            "whose rows differ",
            ", ".join(map(repr, still)),
        )
    return share


def together(proofs: Sequence[Proof]) -> Proof:
    """The proofs of one program at several sizes as one. What is allowed is what any of them allows, and less than half
    of what a wrong row shows in any.
    """
    if len(proofs) == 1:
        return proofs[0]
    tolerances = {
        platform: {name: _widest([p.tolerances[platform][name] for p in proofs]) for name in outputs}
        for platform, outputs in proofs[0].tolerances.items()
    }
    goldens = tuple(golden for proof in proofs for golden in proof.goldens)
    rows = BITWISE if all(proof.rows == BITWISE for proof in proofs) else TOLERANCE
    return Proof(goldens, tolerances, max(proof.worst_share for proof in proofs), rows)


def _widest(found: Sequence[Tolerance]) -> Tolerance:
    wrong = min((each.wrong for each in found if each.wrong), default=0.0)
    atol, rtol = max(each.atol for each in found), max(each.rtol for each in found)
    scale = max((each.atol / each.rtol for each in found if each.rtol), default=0.0)
    if wrong and scale:
        atol, rtol = min(atol, wrong / 4), min(rtol, wrong / (4 * scale))
    return Tolerance(atol, rtol, wrong)


def jitted(source: Source) -> Run:
    """The function on host arrays; ExportRefused for what it raises."""

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return to_host(trace_or_refuse(lambda: source(inputs)))

    return run


def check_repeats(first: Source, second: Source, inputs: Mapping[str, np.ndarray]) -> None:
    """ExportRefused where one function, traced twice, gives two answers: then it is no program's fault to differ."""
    one, other = jitted(first)(inputs), jitted(second)(inputs)
    for name, value in one.items():
        if value.tobytes() != other[name].tobytes():
            raise refusal(
                "JP114", f"output {name!r} of the same inputs is another when the function is traced again"
            )


def golden_of(
    run: Run, inputs: dict[str, np.ndarray], length: int = 0, sizes: Mapping[str, int] | None = None
) -> Golden:
    """What the function answers. length: of its sequences, if it has any. sizes: of its further symbols."""
    rows = len(next(iter(inputs.values())))
    return Golden(rows, inputs, run(inputs), length, sizes or {})


def compare(run: Run, golden: Golden, tolerances: Mapping[str, Tolerance]) -> float:
    """The worst error of the program as a share of its tolerance; ExportRefused above 1."""
    what = f"the exported program differs from the function at {golden.size}"
    try:
        return check_outputs(run(golden.inputs), golden.outputs, tolerances, what)
    except GoldenMismatch as error:
        raise refusal("JP106", str(error)) from error


def tolerances_for(golden: Golden, platform: str, precision: str) -> dict[str, Tolerance]:
    """By output name. The tolerance is a share of the output's scale, and below half of what a wrong row shows."""
    return {name: _tolerance(value, platform, precision) for name, value in golden.outputs.items()}


def share_for(dtype: str, platform: str, precision: str) -> float:
    """What two correct machines may differ by in a floating dtype, as a share of the scale."""
    if platform == "cuda" and dtype in ("float32", "complex64") and precision == "default":
        return TF32_SHARE
    return SHARES.get(dtype, COARSE_SHARE)


def _tolerance(value: np.ndarray, platform: str, precision: str) -> Tolerance:
    if is_exact(value.dtype):
        return Tolerance(0.0, 0.0, 1.0)
    scale = _scale(value)
    # Of a wrong row: what the one shows that differs the least from the next. 0: two have one answer, and nothing shows.
    wrong = float(_distances(value).min(initial=np.inf)) if value.size and value.ndim else 0.0
    share = share_for(value.dtype.name, platform, precision)
    if wrong <= _hidden(value):
        wrong = 0.0
    if wrong:
        # At the largest element atol + rtol * |want| is 2 * share * scale.
        share = min(share, wrong / (4 * scale))
    return Tolerance(atol=share * scale, rtol=share, wrong=wrong)


def _hidden(value: np.ndarray) -> float:
    """What rounding alone may make of two equal answers; nothing of integers."""
    if is_exact(value.dtype):
        return 0.0
    dtype = value.dtype
    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    share = min(SHARES.get(dtype.name, COARSE_SHARE), ROUNDING * float(ml_dtypes.finfo(real).eps))
    return 4 * share * _scale(value)


def _scale(value: np.ndarray) -> float:
    """The largest finite absolute value."""
    wide = np.abs(value.astype(np.complex128))
    return float(np.where(np.isfinite(wide), wide, 0.0).max(initial=0.0))


def _distances(value: np.ndarray) -> np.ndarray:
    """Of each row the largest difference to the next."""
    wide = value.astype(np.complex128).reshape(len(value), -1)
    difference = np.abs(wide - np.roll(wide, 1, axis=0))
    return np.where(np.isfinite(difference), difference, 0.0).max(axis=1, initial=0.0)


def loss_outputs(exported: jax.export.Exported, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """As `batch_outputs`, of a loss; BadSpec unless it is one real number."""
    avals = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    found = ", ".join(f"{name} {avals[name].str_short()}" for name in names)
    if len(names) != 1 or avals[names[0]].shape or np.dtype(avals[names[0]].dtype).kind not in "fV":
        raise BadSpec(f"loss: the function gives {found}; one number of floating point, as a mean, is needed")
    return {names[0]: ()}


def batch_outputs(
    exported: jax.export.Exported,
    names: Sequence[str],
    symbol: str,
    sequence: str | None = None,
    free: Collection[str] = (),
) -> dict[str, tuple[Any, ...]]:
    """Shapes of the outputs by name; ExportRefused where one does not have the batch as its first dimension, or has
    the sequence anywhere but behind it. free: the further symbols that sizes may be made of.
    """
    avals = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    shapes = {}
    for name in names:
        readable(name, avals[name].dtype)
        shape = tuple(int(d) if isinstance(d, int) else str(d) for d in avals[name].shape)
        if not shape or shape[0] != symbol or any(symbol in symbols(size) for size in shape[1:]):
            raise refusal(
                "JP109",
                f"output {name!r} has shape [{', '.join(map(str, shape))}], and its first dimension must be the batch "
                f"{symbol!r} and no other may be",
            )
        after = shape[2:] if sequence is not None and shape[1:2] == (sequence,) else shape[1:]
        if any(not symbols(size) <= set(free) for size in after):
            raise refusal(
                "JP110",
                f"output {name!r} has shape [{', '.join(map(str, shape))}], and sizes after the batch must be fixed, or "
                f"the second {sequence or 'a declared sequence'!r} alone",
            )
        shapes[name] = shape
    return shapes


def readable(name: str, dtype: Any) -> None:
    """ExportRefused for an output of a dtype that no client can read."""
    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        raise refusal("JP111", f"output {name!r} is of {dtype}, which no client can read")
    try:
        whole_bytes(f"output {name!r}", np.dtype(dtype))
    except BadSpec as error:
        raise refusal("JP111", str(error)) from None
