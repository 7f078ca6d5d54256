"""Code that a person brought, as the rest calls it: what it gives is looked at, and what it raises says whose it is.

Two wrappers around a task and its data. They cost a comparison of shapes for each batch, and nothing in a step: a loss
is called as it is traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jaxport.stopping import Unwound
from train_job.errors import OwnCodeFailed, TrainError, UsageError
from train_job.presets import Baseline, Dataset, PredictSignature, Task
from train_job.rows import OF_THE_LOOP, throughput

if TYPE_CHECKING:
    import jax

    from train_job.data.sources import Corpus

EVERY = slice(None)
_OF_DATA = ("batch", "evaluation", "baselines")


@contextmanager
def own_code(what: str, but: type[Exception] = TrainError) -> Iterator[None]:
    """Within, an exception becomes OwnCodeFailed, which begins with `what`; ours, and those of `but`, stay as they are.

    A `sys.exit` too: a run that their code ends is not done, whatever code they give. A signal stays what it is.
    """
    try:
        yield
    except (TrainError, Unwound, but):
        raise
    except (Exception, SystemExit) as error:
        raise OwnCodeFailed.of(what, error) from error


@dataclass(frozen=True)
class GuardedTask(Task):
    """A task, under the name that a person gave it: "--model convnet:digits"."""

    task: Task
    named: str
    unit: str = field(init=False)
    headline: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", self.task.unit)
        object.__setattr__(self, "headline", self.task.headline)

    @property
    def _what(self) -> str:
        return f"{self.named}: %s of {type(self.task).__name__}"

    def load(self, data: str | None, kept: Corpus | None = None) -> Dataset:
        """Without `kept` where there is none, so that a task that keeps nothing need not know of it."""
        what = self._what % "load"
        with own_code(what):
            loaded = self.task.load(data) if kept is None else self.task.load(data, kept)
        missing = [name for name in ("info", *_OF_DATA) if _is_missing(loaded, name)]
        if missing:
            raise UsageError(
                f"{what} gave a {type(loaded).__name__} without {missing[0]}, needs a train_job.presets.Dataset"
            )
        return GuardedDataset(loaded, f"{self.named}: %s of {type(loaded).__name__}")

    def loss(self, module: Any, batch: Mapping[str, jax.Array], rng: jax.Array) -> tuple[jax.Array, dict]:
        what = self._what % "loss"
        with own_code(what):
            given = self.task.loss(module, batch, rng)
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], Mapping):
            raise UsageError(
                f"{what} gave {described(given)}, needs two things: the loss, and a dict of further metrics"
            )
        _require_scalar(what, "", given[0])
        for name, value in given[1].items():
            if name == "loss":
                raise UsageError(
                    f"{what}: its metrics have one named loss, which is the loss itself; rename it"
                )
            _require_scalar(what, f" as metric {name!r}", value)
        return given[0], dict(given[1])

    def signature(self) -> PredictSignature:
        with own_code(what := self._what % "signature"):
            found = self.task.signature()
        if not isinstance(found, PredictSignature):
            raise UsageError(
                f"{what} gave a {type(found).__name__}, needs a train_job.presets.PredictSignature"
            )
        return found

    def example_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        with own_code(what := self._what % "example_inputs"):
            found = self.task.example_inputs(rows, seed)
        return _arrays(what, found)

    def predict(self, module: Any, inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """As it is: what an export says of a function that cannot be traced begins with JAX's own exception."""
        return self.task.predict(module, inputs)

    def report(self, metrics: Mapping[str, float]) -> dict[str, float]:
        with own_code(what := self._what % "report"):
            found = self.task.report(metrics)
        if not isinstance(found, Mapping):
            raise UsageError(f"{what} gave {described(found)}, needs a dict of numbers by name")
        taken = {*OF_THE_LOOP, throughput(self.unit)}
        for name in found:
            if not isinstance(name, str) or name in taken:
                why = "which every row has already; rename it" if name in taken else "needs a text"
                raise UsageError(f"{what} gave a metric named {name!r}, {why}")
        return {name: _number(f"{what} gave {name!r} as", value) for name, value in found.items()}

    def positions(self, rows: int) -> int:
        with own_code(self._what % "positions"):
            return self.task.positions(rows)


def plain(task: Task) -> Task:
    """The task as its author made it."""
    return task.task if isinstance(task, GuardedTask) else task


def replaced(task: Task, **changes: Any) -> Task:
    """The task, a dataclass, with some of its fields changed."""
    changed = replace(cast(Any, plain(task)), **changes)
    return GuardedTask(changed, task.named) if isinstance(task, GuardedTask) else changed


class GuardedDataset(Dataset):
    """Data whose batches have, at every step, the names, shapes and dtypes of the first that was asked for.

    what: how its methods are named in errors, with a %s for theirs.
    """

    def __init__(self, data: Dataset, what: str) -> None:
        self.data, self.what, self.info = data, what, data.info
        self._like: dict[str, str] = {}

    def batch(self, seed: int, step: int, rows: int, own: slice = EVERY) -> dict[str, np.ndarray]:
        what = self.what % "batch"
        try:
            with own_code(what, but=MemoryError):
                batch = self.data.batch(seed, step, rows, *([] if own == EVERY else [own]))
        except MemoryError as error:
            raise UsageError(
                f"{what} has not the memory for {rows} rows: {str(error) or 'MemoryError'}; needs a smaller --set batch_size"
            ) from error
        wanted = len(range(rows)[own])
        found = _arrays(what, batch)
        for name, values in found.items():
            if values.ndim < 1 or len(values) != wanted:
                raise UsageError(
                    f"{what} gave {name!r} as {described(values)} at step {step}, needs {wanted} rows: batch_size, at "
                    "every step"
                )
        rows_are = {name: f"rows of {values.dtype}{list(values.shape[1:])}" for name, values in found.items()}
        self._like = self._like or rows_are
        if rows_are != self._like:
            names = sorted(rows_are.keys() | self._like.keys())
            was, now = ({name: of.get(name, "nothing") for name in names} for of in (self._like, rows_are))
            odd = next(name for name in names if was[name] != now[name])
            raise UsageError(
                f"{what} gave {odd!r} as {now[odd]} at step {step}, needs {was[odd]} as at the first: a step is compiled "
                "for one shape"
            )
        return found

    def evaluation(self, part: str) -> dict[str, np.ndarray]:
        what = self.what % "evaluation"
        with own_code(what):
            batches = self.data.evaluation(part)
        found = _arrays(what, batches)
        sizes = {values.shape[:2] for values in found.values()}
        if len(sizes) != 1 or len(min(sizes)) < 2 or 0 in min(sizes):
            said = ", ".join(f"{name} {described(values)}" for name, values in found.items())
            raise UsageError(
                f"{what} gave {said} for {part!r}, needs [batches, rows, ...] with the same batches and rows in all"
            )
        return found

    def baselines(self) -> dict[str, Baseline]:
        with own_code(what := self.what % "baselines"):
            found = dict(self.data.baselines())
        for name, base in found.items():
            if not isinstance(base, Baseline):
                raise UsageError(
                    f"{what} gave {name} as a {type(base).__name__}, needs a train_job.presets.Baseline"
                )
        return found


def _is_missing(data: Any, name: str) -> bool:
    inherited = getattr(Dataset, name, None)
    return not hasattr(data, name) or (name != "baselines" and getattr(type(data), name, 0) is inherited)


def _arrays(what: str, given: Any) -> dict[str, np.ndarray]:
    if not isinstance(given, Mapping) or not given:
        raise UsageError(f"{what} gave {described(given)}, needs a dict of arrays by name")
    for name, values in given.items():
        if not hasattr(values, "dtype") or not hasattr(values, "shape"):
            raise UsageError(f"{what} gave {name!r} as a {type(values).__name__}, needs a NumPy array")
        if values.dtype.kind in "OUSMm":
            raise UsageError(f"{what} gave {name!r} of dtype {values.dtype}, needs numbers")
    return dict(given)


def _number(said: str, value: Any) -> float:
    """A Python float, which JSON has, of whatever is one real number."""
    import jax.numpy as jnp

    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    of_array = (
        shape == () and dtype is not None and (dtype.kind in "biu" or jnp.issubdtype(dtype, jnp.floating))
    )
    if of_array or (shape is None and isinstance(value, Real)):
        with suppress(OverflowError):
            return float(cast(Any, value))
    raise UsageError(f"{said} {described(value)}, needs one real number")


def _require_scalar(what: str, which: str, value: Any) -> None:
    import jax.numpy as jnp

    if getattr(value, "shape", None) != () or not (which or jnp.issubdtype(value.dtype, jnp.floating)):
        raise UsageError(
            f"{what} gave {described(value)}{which}, needs one float number: the mean over the rows, such as jnp.mean of them"
        )


def described(value: Any) -> str:
    """float32[4, 10], or the kind of what is no array."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return "None" if value is None else f"a {type(value).__name__}"
