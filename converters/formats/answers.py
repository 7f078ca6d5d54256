"""Whether a format answers as the goldens do, whatever runs it. Knows neither JAX nor any format."""

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import BundleError, ConvertError
from converters.golden import Golden, check_outputs, is_exact
from converters.manifest import Signature, Tolerance

Answers = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
# Another compiler sums in another order: it may be off by so many times what XLA may, and never by half of what a wrong
# row shows.
SLACK = 10


@dataclass(frozen=True)
class Written:
    """A format where it lies. folder: of the bundle. facts: the manifest's. weights: reads them, on the host by name.

    files: those of the manifest, whose digests were checked; None before there is one.
    """

    folder: Path
    facts: Mapping[str, Any]
    weights: Callable[[], Mapping[str, np.ndarray]]
    files: Collection[str] | None = None

    def at(self, name: str) -> Path:
        """A file of the facts, or a folder of such. BundleError for one that no digest vouches for: facts may say anything."""
        if self.files is not None and not any(
            file == name or file.startswith(f"{name}/") for file in self.files
        ):
            raise BundleError(
                f"{self.folder}: the manifest's formats name {name!r}, which is none of its files"
            )
        return self.folder / name


@dataclass(frozen=True)
class Case:
    """A signature, and what its function answered."""

    signature: Signature
    goldens: Sequence[Golden]
    tolerances: Mapping[str, Tolerance]


@dataclass(frozen=True)
class Seen:
    """goldens: how many were run. worst_difference: the largest, in the outputs' own units; 0 is bit for bit."""

    goldens: int
    worst_difference: float


def check_answers(name: str, module: Any, written: Written, cases: Sequence[Case]) -> Seen:
    """Runs every golden of `cases` through `module.runner`; a golden that it returns None for is of no shape that it has.

    GoldenMismatch: an answer is off. BundleError: it cannot be run, or has no shape for any golden.
    """
    count, worst = 0, 0.0
    for case in cases:
        run = _or_error(name, written, lambda case=case: module.runner(written, case.signature))
        allowed = {output: loosened(t) for output, t in case.tolerances.items()}
        ran = 0
        for golden in case.goldens:
            got = _or_error(name, written, lambda golden=golden, run=run: run(golden.inputs))
            if got is None:
                continue
            what = f"{written.folder} {name} {case.signature.name} {golden.size} by {module.runtime()}"
            check_outputs(got, golden.outputs, allowed, what)
            worst = max([worst, *(_difference(got[n], want) for n, want in golden.outputs.items())])
            ran += 1
        if not ran:
            raise BundleError(
                f"{written.folder}: {name} has no shape that a golden of {case.signature.name!r} fits"
            )
        count += ran
    return Seen(count, worst)


def loosened(tolerance: Tolerance) -> Tolerance:
    """SLACK times as much, and at the largest element no more than half of `wrong`."""
    if not tolerance.rtol:
        return tolerance
    scale = tolerance.atol / tolerance.rtol
    share = SLACK * tolerance.rtol
    if tolerance.wrong and scale:
        share = max(tolerance.rtol, min(share, tolerance.wrong / (4 * scale)))
    return Tolerance(share * scale, share, tolerance.wrong)


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = np.asarray(got).astype(wide), want.astype(wide)
    with np.errstate(invalid="ignore"):
        off = np.abs(a - b)[np.isfinite(a) & np.isfinite(b)]
    return float(off.max()) if off.size and not is_exact(want.dtype) else 0.0


def _or_error(name: str, written: Written, step: Callable[[], Any]) -> Any:
    """What another library raises, in one line."""
    try:
        return step()
    except ConvertError:
        raise
    # TensorFlow, onnxruntime and IREE raise what they like.
    except Exception as error:
        raise BundleError(f"{written.folder}: {name} cannot be run: {one_line(error)}") from error


def library(name: str) -> Any:
    """A format's library, which most installations lack. Imported when it is needed."""
    return importlib.import_module(name)


def one_line(error: BaseException) -> str:
    """An error of another library, for a line of ours."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
