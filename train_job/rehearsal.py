"""A model, its task and its data tried together before a run writes anything: by shapes alone, so that it costs no step.

What does not fit would else come up after minutes, in the compiler, or after days, in the export.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import optax

from train_job.compute import Compute
from train_job.errors import OwnCodeFailed, UsageError
from train_job.fingerprint import optimizer_name
from train_job.guarded import described, own_code
from train_job.mesh import Layout
from train_job.presets import Dataset, PredictSignature
from train_job.settings import TrainSettings
from train_job.steps import loss_function, mean_metrics
from train_job.weights import Skeleton, skeleton

_ROWS = 3  # of an example: no size that a model is likely to have besides


def rehearse(settings: TrainSettings, data: Dataset, layout: Layout) -> None:
    """Raises UsageError naming what does not fit what, OwnCodeFailed where code that is not ours raised."""
    structure = _structure(settings)
    batch = _batch(settings, data, layout)
    _loss(settings, structure, batch)
    _optimizer(settings, structure)
    _metrics(settings, structure, data)
    _prediction(settings, structure)


def _structure(settings: TrainSettings) -> Skeleton:
    model = settings.preset.model
    with _named_first(settings), own_code(f"{_named(settings)}: build of {type(model).__name__}"):
        structure = skeleton(model)
    if not structure.trainable:
        raise UsageError(
            f"{_named(settings)}: the module of {type(model).__name__} has no nnx.Param to train"
        )
    return structure


def _batch(settings: TrainSettings, data: Dataset, layout: Layout) -> dict[str, np.ndarray]:
    """The first batch; says where another call gives another, or a part of it is not that part."""
    seed, rows = settings.hyper.seed, layout.batch_rows
    first, again = (data.batch(seed, 0, rows) for _ in range(2))
    for name, values in first.items():
        if not np.array_equal(values, again[name], equal_nan=values.dtype.kind in "fc"):
            raise UsageError(
                f"{_named(settings)}: two calls of batch({seed}, 0, {rows}) give {name!r} differently, needs the same: it "
                "has to follow from seed and step alone, as by train_job.data.draws.draw, for a run to be resumed"
            )
    if not layout.processes.alone:
        part = data.batch(seed, 0, rows, layout.own_rows)
        for name, values in part.items():
            if not np.array_equal(values, first[name][layout.own_rows], equal_nan=values.dtype.kind in "fc"):
                raise UsageError(
                    f"{_named(settings)}: batch({seed}, 0, {rows}, own) gives {name!r} with other rows than own takes of "
                    "the whole batch"
                )
    return first


def _loss(settings: TrainSettings, structure: Skeleton, batch: Mapping[str, Any]) -> None:
    learned, kept = {}, {}
    for name, leaf in structure.abstract.items():
        (learned if name in structure.trainable else kept)[name] = leaf
    compute = Compute.of(settings.hyper, settings.upkeep)
    loss_of = loss_function(settings.preset.task, structure, compute)
    _, after = jax.eval_shape(loss_of, learned, kept, batch, jax.random.key(0))
    for name, leaf in after.items():
        if (leaf.shape, leaf.dtype) != (kept[name].shape, kept[name].dtype):
            raise UsageError(
                f"{_named(settings)}: a step leaves {name!r} as {described(leaf)}, needs {described(kept[name])}, as it was built"
            )


def _optimizer(settings: TrainSettings, structure: Skeleton) -> None:
    """One of their own: what it makes of gradients is of the weights' shapes and dtypes."""
    if settings.preset.optimizer is None:
        return
    named = f"{_named(settings)}: optimizer {optimizer_name(settings.preset)}"
    learned = {name: leaf for name, leaf in structure.abstract.items() if name in structure.trainable}

    with own_code(named):
        given = settings.preset.optimizer(settings.hyper)
    if not isinstance(given, optax.GradientTransformation):
        raise UsageError(f"{named} gave {described(given)}, needs an optax.GradientTransformation")

    def once(weights: dict[str, jax.Array]) -> Any:
        return given.update(weights, given.init(weights), weights)[0]

    with own_code(named):
        updates = jax.eval_shape(once, learned)
    for name, leaf in learned.items():
        if updates[name].shape != leaf.shape:
            raise UsageError(
                f"{named} makes an update {described(updates[name])} of {name!r}, needs {described(leaf)}"
            )


def _metrics(settings: TrainSettings, structure: Skeleton, data: Dataset) -> None:
    """The task's metrics in evaluation, and what it reports of them; numbers stand in for those to come."""
    task = settings.preset.task
    shapes, other = (
        {name: jax.ShapeDtypeStruct(values.shape, values.dtype) for name, values in batches.items()}
        for batches in (data.evaluation("validation"), data.evaluation("train"))
    )
    if shapes != other:
        odd = next(name for name in (*shapes, *other) if shapes.get(name) != other.get(name))
        found, needed = (described(of[odd]) if odd in of else "nothing" for of in (other, shapes))
        raise UsageError(
            f"{_named(settings)}: evaluation('train') gives {odd!r} as {found}, needs {needed} as of 'validation': both are "
            "evaluated by one program"
        )
    found = jax.eval_shape(mean_metrics(task, structure), structure.abstract, shapes)
    reported = task.report({f"{part}_{name}": 0.5 for part in ("train", "val") for name in found})
    if task.headline not in reported:
        raise UsageError(
            f"{_named(settings)}: headline is {task.headline!r}, needs one of what is reported: {', '.join(sorted(reported))}"
        )
    if not task.positions(settings.hyper.batch_size) > 0:
        raise UsageError(
            f"{_named(settings)}: positions({settings.hyper.batch_size}) is {task.positions(settings.hyper.batch_size)}, "
            "needs a number above 0"
        )


def _prediction(settings: TrainSettings, structure: Skeleton) -> None:
    """The trained model on an example, as an export will have it."""
    preset, named = settings.preset, _named(settings)
    signature, examples = preset.predict_signature, preset.example_inputs(_ROWS, 0)
    if examples.keys() != signature.inputs.keys():
        raise UsageError(
            f"{named}: example_inputs has {', '.join(examples) or 'nothing'}, needs the inputs of the signature: "
            f"{', '.join(signature.inputs)}"
        )
    for name, (dtype, shape) in signature.inputs.items():
        if not _fits(examples[name], dtype, shape):
            raise UsageError(
                f"{named}: example_inputs({_ROWS}, seed) has {name!r} as {described(examples[name])}, needs {dtype}[{shape}] "
                f"with {_ROWS} rows for b, as the signature says"
            )
    with (
        _named_first(settings),
        own_code(f"{named}: predict on example_inputs of the signature {_takes(signature)}"),
    ):
        outputs = jax.eval_shape(preset.predict_fn(), structure.abstract, examples)
    if set(outputs) != set(signature.outputs):
        raise UsageError(
            f"{named}: predict gives {', '.join(outputs)}, needs the outputs of the signature: {', '.join(signature.outputs)}"
        )
    for name, value in outputs.items():
        if not value.shape or value.shape[0] != _ROWS:
            raise UsageError(
                f"{named}: predict gives {name!r} as {described(value)} for {_ROWS} rows, needs the rows first"
            )


def _fits(example: Any, dtype: str, shape: str) -> bool:
    first, *rest = (part.strip() for part in shape.split(","))
    found = list(getattr(example, "shape", ()))
    if str(getattr(example, "dtype", None)) != dtype or len(found) != len(rest) + 1:
        return False
    return (
        first == "b"
        and found[0] == _ROWS
        and all(p == str(n) or not p.isdigit() for p, n in zip(rest, found[1:], strict=True))
    )


def _takes(signature: PredictSignature) -> str:
    return ", ".join(f"{name} {dtype}[{shape}]" for name, (dtype, shape) in signature.inputs.items())


@contextmanager
def _named_first(settings: TrainSettings) -> Iterator[None]:
    """What says of a part that it does not do says of which model."""
    try:
        yield
    except OwnCodeFailed:
        raise
    except UsageError as error:
        raise UsageError(f"{_named(settings)}: {error}") from error


def _named(settings: TrainSettings) -> str:
    return f"{'--model' if ':' in settings.preset_name else '--preset'} {settings.preset_name}"
