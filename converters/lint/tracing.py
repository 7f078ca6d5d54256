"""Why a function could not be traced or lowered, as the rule that it breaks."""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from converters.errors import BadSpec, ExportRefused
from converters.lint.rules import refusal

NARROWED = "Explicitly requested dtype"
NO_PROMISE = "no compatibility guarantees"
NO_LOWERING = re.compile(r"not found for platform|multi-platform lowering")
HERE = str(Path(__file__).resolve().parent.parent)
TARGET = re.compile(r"stablehlo\.custom_call @([\w$.]+)")


def trace_or_refuse[T](
    step: Callable[[], T], rule: Callable[[], str] | None = None, narrowed: list[str] | None = None
) -> T:
    """Runs a step of the tracing; whatever the function or JAX raises becomes one line.

    rule: finds the code for an error that does not tell by itself; JP120 without it. narrowed: takes what JAX says of 64
    bits that it made 32, which is said nowhere without it.
    """
    try:
        with _narrowing([] if narrowed is None else narrowed):
            return step()
    except (BadSpec, ExportRefused):
        raise
    # The function is the caller's: it may raise anything, and JAX has no common error either.
    except Exception as error:
        reason = _reason(error)
        code = _rule(error, reason) or (rule() if rule else "") or "JP120"
        what = f"the function cannot be exported{place_in_caller(error)}: {type(error).__name__}: {reason}"
        raise refusal(code, what) from error


def _rule(error: Exception, reason: str) -> str:
    if type(error).__name__ == "InconclusiveDimensionOperation":
        return "JP104" if "comparison" in reason else "JP105"
    if "_DimExpr" in reason:
        return "JP105"
    if NO_PROMISE in reason:
        return "JP102"
    return "JP117" if NO_LOWERING.search(reason) else ""


def unpromised_targets(error: BaseException | None) -> list[str]:
    """The targets that an export was stopped for, since JAX promises them for no other release."""
    return sorted(set(TARGET.findall(str(error)))) if NO_PROMISE in str(error) else []


@contextlib.contextmanager
def _narrowing(said: list[str]) -> Iterator[None]:
    """Collects JAX's warnings of narrowed dtypes; others go on as they would."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=NARROWED)
        yield
    for warning in caught:
        if str(warning.message).startswith(NARROWED):
            said.append(str(warning.message).split(". ")[0])
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def place_in_caller(error: BaseException) -> str:
    """ " at model.py:12" for the last frame outside installed packages and this one, if there is any."""
    place, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if "site-packages" not in name and not name.startswith("<") and not name.startswith(HERE):
            place = f" at {name.rsplit('/', 1)[-1]}:{step.tb_lineno}"
        step = step.tb_next
    return place
