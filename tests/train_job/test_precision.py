"""bfloat16, parts and recomputation: the same run within a stated tolerance, for less memory."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from train_job.checkpoints import load_params, read_run
from train_job.compute import AS_MADE, Compute
from train_job.errors import FingerprintMismatch, UsageError
from train_job.job import train
from train_job.mesh import Layout, lay_out
from train_job.models.transformer import Block, TransformerConfig
from train_job.optimizer import optimizer
from train_job.presets import Preset, Task, get_preset
from train_job.processes import ALONE
from train_job.rows import read_metrics
from train_job.settings import Hyperparameters, TrainSettings
from train_job.state import TrainState, abstract_state, fresh_state
from train_job.steps import Batch, jit_step, loss_function, mean_gradients
from train_job.tasks.classification import DigitClassification
from train_job.tasks.next_token import NextToken
from train_job.training import require_even_parts
from train_job.weights import Weights, initialise, skeleton

type Settings = Callable[..., TrainSettings]

ROWS = 16
MODEL = TransformerConfig(layers=1, d_model=16, heads=2, ffn=64, context=32)
DEEP = dataclasses.replace(MODEL, layers=3)


def value_and_gradient(compute: Compute) -> Callable[..., Any]:
    loss_of = loss_function(NextToken(MODEL.context), skeleton(MODEL), compute)

    def both(weights: Weights, tokens: jax.Array) -> Any:
        return jax.value_and_grad(
            lambda weights: loss_of(weights, {}, {"tokens": tokens}, jax.random.key(0))[0]
        )(weights)

    return both


def abstract(model: TransformerConfig) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
    return skeleton(model).abstract, jax.ShapeDtypeStruct((ROWS, model.context + 1), jnp.uint8)


def residual_bytes(compute: Compute) -> int:
    """Of what the forward pass of DEEP hands to the backward one, the weights included."""
    loss_of = loss_function(NextToken(DEEP.context), skeleton(DEEP), compute)

    def forward(weights: Weights, tokens: jax.Array) -> Any:
        return jax.vjp(
            lambda weights: loss_of(weights, {}, {"tokens": tokens}, jax.random.key(0))[0], weights
        )[1]

    kept = jax.eval_shape(forward, *abstract(DEEP))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


def one_step(preset: Preset, hyper: Hyperparameters) -> tuple[TrainState, Any]:
    layout = lay_out({}, ROWS, ALONE)
    batch = preset.task.load(None).batch(0, 0, ROWS)
    transform = optimizer(hyper)
    state = fresh_state(preset.model, transform, 0, abstract_state(preset.model, transform, layout))
    return jit_step(preset, hyper, layout, state)(state, batch)


def test_four_parts_of_a_batch_make_the_step_that_the_whole_makes() -> None:
    """Loss and gradient's norm within 1e-6 of theirs, Adam's first moment, a multiple of the gradient, within 1e-5."""
    preset = get_preset("toy_model:mlp")
    (whole, said), (parts, said_of_parts) = (
        one_step(preset, dataclasses.replace(preset.hyper, accumulate=count)) for count in (1, 4)
    )
    np.testing.assert_allclose(said_of_parts[:2], said[:2], rtol=1e-6)
    first, second = (state.optimizer[1][0].mu for state in (whole, parts))
    assert max(float(jnp.abs(value).max()) for value in first.values()) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), second, first)


def test_parts_are_computed_one_after_the_other_with_a_key_and_rows_of_their_own() -> None:
    keys, seen = [], []

    def loss_of(learned: Weights, kept: Weights, batch: Batch, key: jax.Array) -> tuple[jax.Array, Weights]:
        jax.debug.callback(
            lambda rows, key: (seen.append(rows.tolist()), keys.append(int(key))),
            batch["x"],
            jax.random.bits(key),
            ordered=True,
        )
        return (learned["w"] * batch["x"]).mean(), {"seen": kept["seen"] + 1}

    learned, kept = {"w": jnp.float32(2)}, {"seen": jnp.float32(0)}
    given = learned, kept, {"x": jnp.arange(6.0)}, jax.random.key(0)
    loss, kept, gradients = mean_gradients(loss_of, *given, parts=3)
    jax.effects_barrier()
    assert seen == [[0, 3], [1, 4], [2, 5]]
    assert len(set(keys)) == 3
    assert (float(loss), float(kept["seen"]), float(gradients["w"])) == (5, 3, 2.5)


def test_bfloat16_trains_like_float32_within_two_percent_and_its_weights_are_float32(
    toy_settings: Settings, finished: Path, tmp_path: Path
) -> None:
    settings = toy_settings(tmp_path, overrides={"compute_dtype": "bfloat16"})
    assert train(settings) == 0
    halved, full = (read_metrics(folder) for folder in (settings.run_dir, finished))
    for row, beside in zip(halved, full, strict=True):
        assert row["val_loss"] == pytest.approx(beside["val_loss"], rel=0.02)
    assert halved[-1]["val_loss"] != full[-1]["val_loss"]
    weights = load_params(settings.run_dir, settings.hyper.steps)
    assert {str(value.dtype) for value in weights.values()} == {"float32"}


def test_products_are_in_bfloat16_and_what_sums_over_many_in_float32() -> None:
    """The softmax of attention and of the loss, the statistics of a norm, the gradient of an embedding."""
    program = str(jax.make_jaxpr(value_and_gradient(Compute("bfloat16")))(*abstract(MODEL)))
    products = re.findall(r":(\w+)\[[\d,]+\] = dot_general\[", program)
    assert {"bf16"} < set(products), "else nothing was asked of the model"
    for name in ("exp", "log", "scatter-add", "rsqrt", "logistic"):
        kinds = set(re.findall(rf":(\w+)\[[\d,]*\] = {name}\b", program))
        assert kinds <= {"f32"}, name


def test_what_blocks_add_to_is_in_bfloat16_too(monkeypatch: pytest.MonkeyPatch) -> None:
    call, seen = Block.__call__, []

    def seeing(self: Block, x: jax.Array) -> jax.Array:
        seen.append((x.dtype, (made := call(self, x)).dtype))
        return made

    monkeypatch.setattr(Block, "__call__", seeing)
    jax.eval_shape(value_and_gradient(Compute("bfloat16")), *abstract(MODEL))
    assert seen == [(jnp.bfloat16, jnp.bfloat16)]


@pytest.mark.parametrize(
    ("task", "batch"),
    [
        (NextToken(2), {"tokens": jnp.zeros((3, 3), jnp.uint8)}),
        (DigitClassification(), {"pixels": jnp.zeros((3, 64)), "label": jnp.zeros(3, jnp.int32)}),
    ],
)
def test_a_loss_of_ours_is_in_float32_whatever_a_module_gives(
    task: Task, batch: dict[str, jax.Array]
) -> None:
    def module(given: jax.Array) -> jax.Array:
        return jnp.zeros((*given.shape[: given.ndim - (given.dtype == jnp.float32)], 10), jnp.bfloat16)

    program = jax.make_jaxpr(lambda: task.loss(module, batch, jax.random.key(0))[0])()
    assert "f32[" in str(program) and not re.search(r":bf16\[[\d,]*\] = (exp|log)\b", str(program))
    assert program.out_avals[0].dtype == jnp.float32


def test_recomputed_blocks_give_the_same_loss_and_gradient() -> None:
    given = initialise(MODEL, 0), jnp.ones((ROWS, MODEL.context + 1), jnp.uint8)
    kept, less = (jax.jit(value_and_gradient(compute))(*given) for compute in (AS_MADE, Compute(remat=True)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), less, kept)


def test_recomputed_blocks_keep_less_for_the_backward_pass_and_so_does_bfloat16() -> None:
    whole, recomputed = residual_bytes(AS_MADE), residual_bytes(Compute(remat=True))
    a_block_keeps = (whole - recomputed) / DEEP.layers
    assert a_block_keeps > 10 * ROWS * DEEP.context * DEEP.d_model * 4, "ten activations in float32"
    assert residual_bytes(Compute("bfloat16")) < 0.75 * whole


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"overrides": {"compute_dtype": "float16"}},
            r"compute_dtype: found 'float16', needs float32 or bfloat16",
        ),
        ({"overrides": {"remat": "yes"}}, r"remat: found 'yes', needs true or false"),
        (
            {"overrides": {"accumulate": "3"}},
            r"accumulate: found 3, needs a divisor of batch_size, the 4 rows",
        ),
        ({"skip_nonfinite": "-1"}, r"--skip-nonfinite: found '-1', needs a whole number of at least 0"),
        (
            {"model": "toy_model:mlp", "data": None, "overrides": {"remat": "true"}},
            r"no module of MlpConfig has an attribute",
        ),
        (
            {"model": "toy_model:opaque", "data": None, "overrides": {"compute_dtype": "bfloat16"}},
            r"no layer of OpaqueConfig leaves",
        ),
    ],
)
def test_what_a_model_or_a_batch_cannot_do_is_refused_before_anything_is_written(
    flags: dict[str, Any], message: str, toy_settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train(toy_settings(tmp_path, **flags))
    assert list(tmp_path.iterdir()) == []


def test_parts_that_devices_cannot_share_evenly_are_refused(toy_settings: Settings, tmp_path: Path) -> None:
    mesh: Any = AbstractMesh((2, 1, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with pytest.raises(
        UsageError, match=r"accumulate: found 4, needs parts of 4 rows .* 2 devices .* divisor of 2"
    ):
        require_even_parts(toy_settings(tmp_path, overrides={"accumulate": "4"}), Layout(mesh, ALONE, 4))


def test_a_run_of_before_these_settings_is_what_it_was(finished: Path, toy_settings: Settings) -> None:
    """Its record says nothing of them. It goes on with what it did then, and with nothing else."""
    record = read_run(finished)
    assert not {"compute_dtype", "accumulate", "remat"} & record.fingerprint.keys()
    root = finished.parents[1]
    with pytest.raises(
        FingerprintMismatch, match=r"compute_dtype was 'float32' .*pass --set compute_dtype=float32"
    ):
        train(toy_settings(root, overrides={"compute_dtype": "bfloat16"}))
    with pytest.raises(FingerprintMismatch, match=r"accumulate was 1 .*pass --set accumulate=1"):
        train(toy_settings(root, overrides={"accumulate": "2"}))
    assert train(toy_settings(root, overrides={"remat": "true"})) == 0, "finished"


def test_choices_are_said_with_their_reason(finished: Path) -> None:
    said = (finished.parents[1] / "said").read_text()
    for choice in (
        "parts      1 (",
        "clipping   gradients to a global norm of 1 (",
        "precision  float32 (",
        "memory     activations kept",
        "no number  a loss or gradient that is not finite stops",
    ):
        assert choice in said
