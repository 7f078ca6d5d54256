"""Factories as people write them the first time, each with one thing wrong; reached by `--model wrong_models:NAME`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from train_job.data.arrays import ArrayData
from train_job.presets import DataInfo, Dataset, PredictSignature, Preset, Task
from train_job.settings import Hyperparameters

ROWS = np.arange(64, dtype=np.float32).reshape(16, 4) / 64


@dataclass(frozen=True)
class Config:
    width: int = 4

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(self.width, 1, rngs=rngs)


class Fit(Task):
    def load(self, data: str | None, kept: Any = None) -> Dataset:
        return ArrayData.cut("ramp", {"x": ROWS, "y": ROWS.sum(1)}, validation=4)  # type: ignore[return-value]

    def loss(self, module: Any, batch: Mapping[str, jax.Array], rng: jax.Array) -> tuple[jax.Array, dict]:
        return jnp.square(module(batch["x"])[:, 0] - batch["y"]).mean(), {}

    def signature(self) -> PredictSignature:
        return PredictSignature({"x": ("float32", "b, 4")}, ("y",), {})

    def example_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        return {"x": ROWS[:rows]}


def right() -> Preset:
    return Preset("right", Config(), Fit(), Hyperparameters(steps=2, batch_size=4, warmup_steps=1))


def with_task(**methods: Any) -> Preset:
    return replace(right(), task=type("Fit", (Fit,), methods)())


def with_model(build: Callable[..., Any]) -> Preset:
    kind = dataclass(frozen=True)(type("Config", (), {"build": build}))
    return replace(right(), model=kind())


def needs_an_argument(size: int) -> Preset:
    return right()


def optimizer_is_a_lambda() -> Preset:
    return replace(right(), optimizer=lambda hyper: optax.sgd(hyper.learning_rate))


def optimizer_is_a_transformation() -> Preset:
    return replace(right(), optimizer=optax.sgd(0.1))  # type: ignore[arg-type]


def gives_a_number(hyper: Hyperparameters) -> Any:
    return hyper.learning_rate


def optimizer_gives_a_number() -> Preset:
    return replace(right(), optimizer=gives_a_number)


def sums(hyper: Hyperparameters) -> optax.GradientTransformation:
    del hyper

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map(lambda value: value.sum(0), updates), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def optimizer_makes_other_shapes() -> Preset:
    return replace(right(), optimizer=sums)


def model_is_a_dict() -> Preset:
    return replace(right(), model={"width": 4})  # type: ignore[arg-type]


def model_is_a_class() -> Preset:
    return replace(right(), model=Config)  # type: ignore[arg-type]


def model_without_build() -> Preset:
    return replace(right(), model=DataInfo("", "", 0, "", ""))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Activated(Config):
    activation: Any = jax.nn.relu


def model_with_a_function() -> Preset:
    return replace(right(), model=Activated())


@dataclass(frozen=True)
class Scaled(Config):
    scales: tuple[float, ...] = (1.0, math.nan)


def model_with_a_nan() -> Preset:
    return replace(right(), model=Scaled())


class Recurrent(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, stream: bool) -> None:
        self.rnn = nnx.RNN(nnx.GRUCell(1, 3, rngs=rngs), rngs=stream)
        self.head = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        states = self.rnn(x[..., None], initial_carry=jnp.zeros((x.shape[0], 3)))
        return self.head(states[:, -1])


def module_with_a_stream() -> Preset:
    return with_model(lambda self, rngs: Recurrent(rngs, stream=True))


def recurrent() -> Preset:
    """As the page says, with nothing wrong."""
    return with_model(lambda self, rngs: Recurrent(rngs, stream=False))


def factory_exits() -> Preset:
    sys.exit(0)


def loss_exits() -> Preset:
    return with_task(loss=lambda self, module, batch, rng: sys.exit("no more"))


def build_gives_a_function() -> Preset:
    return with_model(lambda self, rngs: jax.nn.relu)


def build_raises() -> Preset:
    return with_model(lambda self, rngs: nnx.Linear(4, "one", rngs=rngs))


class Table(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(4, 1, rngs=rngs)
        self.scale = jnp.ones(4)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(x * self.scale)


def module_with_a_bare_array() -> Preset:
    return with_model(lambda self, rngs: Table(rngs))


def module_without_weights() -> Preset:
    return with_model(lambda self, rngs: nnx.Module())


def task_is_a_class() -> Preset:
    return replace(right(), task=Fit)  # type: ignore[arg-type]


def task_without_loss() -> Preset:
    return replace(right(), task=type("Half", (Task,), {"load": Fit.load})())


def task_of_its_own() -> Preset:
    methods = {name: getattr(Fit, name) for name in ("load", "loss", "signature", "example_inputs")}
    return replace(right(), task=type("Mine", (), methods)())


def batch_size_is_a_text() -> Preset:
    return replace(right(), hyper=Hyperparameters(batch_size="32"))  # type: ignore[arg-type]


def learning_rate_is_negative() -> Preset:
    return replace(right(), hyper=Hyperparameters(learning_rate=-1.0))


def name_is_a_path() -> Preset:
    return replace(right(), name="my/model")


def load_gives_arrays() -> Preset:
    return with_task(load=lambda self, data: {"x": ROWS})


def loss_of_every_row() -> Preset:
    return with_task(loss=lambda self, module, batch, rng: (module(batch["x"])[:, 0], {}))


def loss_alone() -> Preset:
    return with_task(loss=lambda self, module, batch, rng: module(batch["x"]).mean())


def loss_with_a_metric_of_every_row() -> Preset:
    return with_task(loss=lambda self, module, batch, rng: (jnp.zeros(()), {"error": batch["y"]}))


def loss_raises() -> Preset:
    return with_task(loss=lambda self, module, batch, rng: module(batch["pixels"]))


def loss_is_not_a_number() -> Preset:
    return with_task(loss=lambda self, module, batch, rng: (module(batch["x"]).mean() * jnp.nan, {}))


def report_gives_nothing() -> Preset:
    return with_task(report=lambda self, metrics: None)


def report_gives_a_text() -> Preset:
    return with_task(report=lambda self, metrics: {**metrics, "val_error": f"{metrics['val_loss']:.3f}"})


def report_gives_rows() -> Preset:
    return with_task(report=lambda self, metrics: {**metrics, "val_error": np.ones((2, 3))})


def report_has_a_step() -> Preset:
    return with_task(report=lambda self, metrics: {**metrics, "step": 1.0})


def report_has_the_throughput() -> Preset:
    return with_task(report=lambda self, metrics: {**metrics, "rows_per_s": 1.0})


def report_of_other_kinds() -> Preset:
    """All of them one number, with nothing wrong."""
    kinds = {
        "f": np.float32(0.5),
        "g": jnp.bfloat16(0.5),
        "a": np.array(2),
        "j": jnp.ones(()),
        "b": True,
        "i": 3,
    }
    return with_task(report=lambda self, metrics: {**metrics, **kinds})


def unknown_headline() -> Preset:
    return with_task(headline="val_accuracy")


def with_data(**methods: Any) -> Preset:
    kind = type("Ramp", (ArrayData,), methods)
    return with_task(load=lambda self, data: kind.cut("ramp", {"x": ROWS, "y": ROWS.sum(1)}, validation=4))


def batch_of_other_rows() -> Preset:
    return with_data(batch=lambda self, seed, step, rows: {"x": ROWS[:3], "y": ROWS[:3].sum(1)})


def batch_of_texts() -> Preset:
    return with_data(batch=lambda self, seed, step, rows: {"x": np.array(["a"] * rows)})


def batch_by_chance() -> Preset:
    chance = np.random.default_rng()
    return with_data(batch=lambda self, seed, step, rows: {"x": chance.random((rows, 4)), "y": np.ones(rows)})


def batch_without_memory() -> Preset:
    def batch(self: Any, seed: int, step: int, rows: int) -> dict[str, np.ndarray]:
        raise MemoryError("Unable to allocate 12.8 TiB")

    return with_data(batch=batch)


def evaluation_is_not_a_number() -> Preset:
    def evaluation(self: Any, part: str) -> dict[str, np.ndarray]:
        bad = np.float32(np.nan if part == "validation" else 1)
        return {"x": ROWS[None, :4] * bad, "y": ROWS[None, :4].sum(2)}

    return with_data(evaluation=evaluation)


def evaluation_of_two_sizes() -> Preset:
    def evaluation(self: Any, part: str) -> dict[str, np.ndarray]:
        rows = 4 if part == "validation" else 8
        return {"x": ROWS[None, :rows], "y": ROWS[None, :rows].sum(2)}

    return with_data(evaluation=evaluation)


def evaluation_without_batches() -> Preset:
    return with_data(evaluation=lambda self, part: {"x": ROWS, "y": ROWS.sum(1)})


def example_of_another_shape() -> Preset:
    return with_task(signature=lambda self: PredictSignature({"x": ("float32", "b, 5")}, ("y",), {}))


def signature_that_the_module_does_not_take() -> Preset:
    return with_task(
        signature=lambda self: PredictSignature({"x": ("float32", "b, 5")}, ("y",), {}),
        example_inputs=lambda self, rows, seed: {"x": np.ones((rows, 5), np.float32)},
    )


def two_inputs_and_no_predict() -> Preset:
    return with_task(
        signature=lambda self: PredictSignature(dict.fromkeys("xz", ("float32", "b, 4")), ("y",), {}),
        example_inputs=lambda self, rows, seed: dict.fromkeys("xz", ROWS[:rows]),
    )


def predict_forgets_an_output() -> Preset:
    return with_task(predict=lambda self, module, inputs: {"z": module(inputs["x"])})


def prediction_is_a_mean() -> Preset:
    return with_task(predict=lambda self, module, inputs: {"y": module(inputs["x"]).mean()})
