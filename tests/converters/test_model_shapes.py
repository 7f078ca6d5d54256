"""Twelve shapes that models have: each ends in a bundle that verifies, or in the rule that applies to it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters import TensorSpec, export_bundle
from converters.errors import ExportRefused

NUMBERS = np.random.default_rng(0)
Arrays = dict[str, Any]


def normal(*shape: int) -> np.ndarray:
    return NUMBERS.normal(size=shape).astype(np.float32) / 2


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)


def convolution(p: Arrays, image: jax.Array) -> jax.Array:
    features = jax.nn.relu(convolve(image, p["first"], 2))
    return features.mean(axis=(1, 2)) @ p["head"]


def lstm(p: Arrays, x: jax.Array) -> jax.Array:
    def step(carry: Any, now: jax.Array) -> Any:
        hidden, cell = carry
        gates = now @ p["input"] + hidden @ p["hidden"] + p["bias"]
        enter, forget, leave, new = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
        return (hidden, cell), None

    start = jnp.zeros((x.shape[0], 8))
    (hidden, _), _ = jax.lax.scan(step, (start, start), x.swapaxes(0, 1))
    return hidden


def attention(p: Arrays, x: jax.Array, mask: jax.Array) -> jax.Array:
    query, key, value = (x @ p[name] for name in ("query", "key", "value"))
    scores = query @ key.swapaxes(1, 2) / 8**0.5
    scores = jnp.where(mask[:, None, :], scores, -1e9)
    return jax.nn.softmax(scores) @ value


def batch_norm(p: Arrays, x: jax.Array) -> jax.Array:
    hidden = (x @ p["w"] - p["mean"]) * jax.lax.rsqrt(p["var"] + 1e-5)
    return jax.nn.relu(hidden * p["scale"] + p["offset"])


def embedding_bag(p: Arrays, ids: jax.Array, weight: jax.Array) -> jax.Array:
    return (p["table"][ids] * weight[..., None]).sum(axis=1)


def top_k(p: Arrays, x: jax.Array) -> Any:
    return tuple(jax.lax.top_k(jax.nn.log_softmax(x @ p["w"]), 3))


def unet_block(p: Arrays, x: jax.Array, time: jax.Array) -> jax.Array:
    """Down, an embedding of the time, up, and past it all the input again."""
    angle = time[:, None] * jnp.exp(-jnp.arange(4.0))
    embedded = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1) @ p["time"]
    down = jax.nn.silu(group_norm(convolve(x, p["down"], 2)))
    middle = jax.nn.silu(group_norm(convolve(down + embedded[:, None, None, :], p["middle"])))
    up = jax.image.resize(middle, (middle.shape[0], 8, 8, 8), "nearest")
    return convolve(jnp.concatenate([x, up], axis=-1), p["out"])


def group_norm(x: jax.Array) -> jax.Array:
    groups = x.reshape(x.shape[0], x.shape[1] * x.shape[2], 2, 4)
    mean, var = groups.mean(axis=(1, 3), keepdims=True), groups.var(axis=(1, 3), keepdims=True)
    return ((groups - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape)


Case = tuple[Callable[..., Any], Arrays, Arrays, tuple[str, ...]]
WHOLE: dict[str, Case] = {
    "convolution": (
        convolution,
        {"first": normal(3, 3, 3, 8), "head": normal(8, 5)},
        {"image": normal(4, 8, 8, 3)},
        ("logits",),
    ),
    "lstm": (
        lstm,
        {"input": normal(4, 32), "hidden": normal(8, 32), "bias": normal(32)},
        {"x": normal(4, 6, 4)},
        ("hidden",),
    ),
    "attention": (
        attention,
        {name: normal(8, 8) for name in ("query", "key", "value")},
        {"x": normal(4, 6, 8), "mask": np.arange(6) < np.array([[6], [3], [5], [1]])},
        ("mixed",),
    ),
    "batch_norm": (
        batch_norm,
        {"w": normal(4, 8), "mean": normal(8), "var": np.ones(8, np.float32), "scale": normal(8), "offset": normal(8)},
        {"x": normal(4, 4)},
        ("hidden",),
    ),
    "embedding_bag": (
        embedding_bag,
        {"table": normal(20, 8)},
        {"ids": NUMBERS.integers(0, 20, (4, 5)).astype(np.int32), "weight": np.abs(normal(4, 5))},
        ("bag",),
    ),
    "top_k": (top_k, {"w": normal(4, 10)}, {"x": normal(4, 4)}, ("scores", "ids")),
    "unet_block": (
        unet_block,
        {"time": normal(8, 8), "down": normal(3, 3, 4, 8), "middle": normal(3, 3, 8, 8), "out": normal(3, 3, 12, 4)},
        {"x": normal(4, 8, 8, 4), "time": np.array([0, 10, 20, 30], np.float32)},
        ("noise",),
    ),
}  # fmt: skip


def export(path: Path, case: Case, **changes: Any) -> Path:
    fn, params, example, outputs = case
    inputs = {
        name: TensorSpec(a.dtype.name, ", ".join(("b", *map(str, a.shape[1:])))) for name, a in example.items()
    }  # fmt: skip
    return export_bundle(path, fn, params, inputs=inputs, outputs=outputs, example=example, **changes)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of every bundle, as `verify` has it; one isolated process for all of them spares its start."""
    folder = tmp_path_factory.mktemp("shapes")
    paths = [export(folder / name / "1", case) for name, case in WHOLE.items()]
    home = str(Path(__file__).resolve().parents[2])
    code = (
        f"import sys; sys.path.insert(0, {home!r}); from converters.verify import child; "
        "[child(path) for path in sys.argv[1:]]"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *map(str, paths)], capture_output=True, text=True, check=True
    )
    return dict(zip(WHOLE, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_of_this_shape_is_a_bundle_that_verifies(name: str, verdicts: dict[str, Any]) -> None:
    assert "error" not in verdicts[name], verdicts[name]
    assert verdicts[name]["goldens"] == 2 and verdicts[name]["worst_share"] <= 1


VOCABULARY = normal(4, 8192)
KEY = jax.random.key(0)


def mean_over_the_batch(p: Arrays, x: jax.Array) -> jax.Array:
    hidden = x @ p["w"]
    return hidden - hidden.mean(axis=0)


def dropout_left_on(p: Arrays, x: jax.Array) -> jax.Array:
    hidden = x @ p["w"]
    return jnp.where(jax.random.bernoulli(KEY, 0.9, hidden.shape), hidden / 0.9, 0)


def noise_inside(p: Arrays, x: jax.Array) -> jax.Array:
    return x @ p["w"] + jax.random.normal(jax.random.key(1), (4,))


def callback(p: Arrays, x: jax.Array) -> jax.Array:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) @ p["w"]


def captured_weights(p: Arrays, x: jax.Array) -> jax.Array:
    return x @ p["w"] @ VOCABULARY


PLAIN = ({"w": normal(4, 4)}, {"x": normal(4, 4)}, ("y",))


@pytest.mark.parametrize(
    ("fn", "code"),
    [
        (mean_over_the_batch, "JP107"),
        (dropout_left_on, "JP113"),
        (noise_inside, "JP113"),
        (callback, "JP101"),
        (captured_weights, "JP103"),
    ],
)
def test_a_model_that_would_answer_wrongly_is_refused_by_its_rule(
    fn: Callable[..., Any], code: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportRefused) as refused:
        export(tmp_path / "m" / "1", (fn, *PLAIN))
    assert refused.value.code == code


def test_dropout_that_is_allowed_is_still_refused_where_it_differs_between_rows(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused) as refused:
        export(tmp_path / "m" / "1", (dropout_left_on, *PLAIN), allow={"JP113": "it is left on for a test"})
    assert refused.value.code == "JP108"
