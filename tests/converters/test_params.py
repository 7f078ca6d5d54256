"""Parameters of any library: stable names, the very tree again, and what is no array stays what it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from converters import open_bundle
from converters.errors import BadSpec, ExportRefused
from converters.weights import flatten_params
from tests.converters.conftest import export_iris

ROWS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.drop = nnx.Dropout(0.5, deterministic=True, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers[1](self.drop(self.norm(jax.nn.relu(self.layers[0](x)))))


class Layer(NamedTuple):
    w: np.ndarray
    b: np.ndarray


@jax.tree_util.register_dataclass
@dataclass
class Model:
    layers: list[Layer]
    scale: float = 2.0  # a setting, as it stands at an attribute
    activation: Callable[[Any], Any] = jax.nn.relu
    name: str = field(default="model", metadata={"static": True})


def model() -> Model:
    return Model([Layer(np.ones((4, 3), np.float32), np.arange(3, dtype=np.float32))])


Case = tuple[Any, Callable[..., Any], list[str]]


def an_nnx_state() -> Case:
    graph, state = nnx.split(Net(nnx.Rngs(0)))
    names = [
        "drop.rngs.count", "drop.rngs.key", "layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.kernel",
        "norm.bias", "norm.mean", "norm.scale", "norm.var",
    ]  # fmt: skip
    return state, lambda params, x: nnx.merge(graph, params)(x), names


def an_nnx_module() -> Case:
    _, _, names = an_nnx_state()
    return Net(nnx.Rngs(0)), lambda params, x: params(x), names


def the_params_of_an_nnx_module_alone() -> Case:
    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
    names = [
        "layers.0.bias",
        "layers.0.kernel",
        "layers.1.bias",
        "layers.1.kernel",
        "norm.bias",
        "norm.scale",
    ]
    return params, lambda params, x: nnx.merge(graph, params, rest)(x), names


def linen_variables() -> Case:
    class Both(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.BatchNorm(use_running_average=True)(nn.Dense(3)(x))

    variables = Both().init(jax.random.key(0), ROWS)
    names = [
        "batch_stats.BatchNorm_0.mean", "batch_stats.BatchNorm_0.var", "params.BatchNorm_0.bias",
        "params.BatchNorm_0.scale", "params.Dense_0.bias", "params.Dense_0.kernel",
    ]  # fmt: skip
    return variables, lambda params, x: Both().apply(params, x), names


def an_equinox_module() -> Case:
    mlp = eqx.nn.MLP(4, 3, 8, 1, activation=jax.nn.gelu, key=jax.random.key(0))
    net = eqx.nn.Sequential([mlp, eqx.nn.Lambda(jnp.tanh), eqx.nn.Dropout(0.5, inference=True)])
    names = [f"layers.0.layers.{i}.{kind}" for i in (0, 1) for kind in ("bias", "weight")]
    return net, lambda params, x: jax.vmap(params)(x), names


def haiku_params() -> Case:
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 3])(x)))
    params = net.init(jax.random.key(0), ROWS)
    names = [f"mlp/~/linear_{i}.{kind}" for i in (0, 1) for kind in ("b", "w")]
    return params, lambda params, x: net.apply(params, x), names


def a_dataclass_of_namedtuples() -> Case:
    def fn(params: Model, x: jax.Array) -> jax.Array:
        return params.activation(x @ params.layers[0].w * params.scale + params.layers[0].b)

    return model(), fn, ["layers.0.b", "layers.0.w"]


LIBRARIES = [
    an_nnx_state, an_nnx_module, the_params_of_an_nnx_module_alone, linen_variables, an_equinox_module, haiku_params,
    a_dataclass_of_namedtuples,
]  # fmt: skip


@pytest.mark.parametrize("case", LIBRARIES)
def test_params_have_stable_names_and_come_back_as_they_were(case: Callable[[], Case]) -> None:
    params, _, names = case()
    weights = flatten_params(params)
    assert list(weights.arrays) == names
    again = weights.rebuild(weights.arrays)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    for got, want in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True):
        same = jnp.array_equal(got, want) if hasattr(want, "dtype") else got is want
        assert same and getattr(got, "dtype", None) == getattr(want, "dtype", None)


@pytest.mark.parametrize("case", [an_nnx_state, an_equinox_module, haiku_params])
def test_a_function_of_them_is_exported_and_answers(case: Callable[[], Case], tmp_path: Path) -> None:
    params, fn, names = case()
    bundle = open_bundle(export_iris(tmp_path / "m" / "1", fn, params=params, platforms=("cpu",)))
    weights = bundle.load_weights()
    assert list(weights) == names
    got = bundle.exported().call(weights, {"x": ROWS})["logits"]
    np.testing.assert_allclose(got, fn(params, ROWS), rtol=1e-5, atol=1e-5)


def test_two_arrays_under_each_others_names_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source takes the params as they came, so that a wrong name cannot be wrong on both sides."""
    from converters import weights

    monkeypatch.setattr(weights, "_names", lambda paths: ["b", "a"][: len(paths)])
    params = {"a": np.ones(4, np.float32), "b": np.full(4, 2, np.float32)}
    fine = export_iris(tmp_path / "m" / "1", lambda p, x: x * p["a"] + p["b"], params=params)
    assert list(open_bundle(fine).load_weights()["a"]) == [2] * 4, "only the names are other ones"

    def swapped(flat: Mapping[str, Any]) -> Any:
        return {"a": flat["a"], "b": flat["b"]}

    wrong = weights.flatten_params(params)
    monkeypatch.setattr(
        "converters.export.flatten_params", lambda _: weights.Weights(params, wrong.arrays, swapped)
    )
    with pytest.raises(ExportRefused, match="the exported program differs from the function"):
        export_iris(tmp_path / "m" / "2", lambda p, x: x * p["a"] + p["b"], params=params)


class Unregistered:
    w = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"model": Unregistered()}, "'model' is a Unregistered; .* a class that is registered as a pytree"),
        ({"act": jax.nn.relu, "w": np.ones(2)}, "'act' is a .*; an array is needed"),
        (Model([Layer(np.array(["a"]), np.ones(1))]), "'layers.0.w' is a ndarray; an array is needed"),
        ({"w": np.ones(2, ">f4")}, r"'w' is in another byte order .*astype\('float32'\)"),
        ({"a": {0: np.ones(1), "0": np.ones(1)}}, "cannot take this tree apart .* keys of one kind"),
        ({"a": {0: np.ones(1)}, "a.0": np.ones(1)}, "two leaves are called 'a.0'"),
    ],
)
def test_what_is_no_parameter_is_named(params: Any, said: str) -> None:
    with pytest.raises(BadSpec, match=said):
        flatten_params(params)


def test_a_box_gives_no_name_where_it_holds_one_array() -> None:
    class Pair(NamedTuple):
        value: np.ndarray
        other: np.ndarray

    one = np.ones(1, np.float32)
    assert list(flatten_params({"k": nnx.Param(one), "p": Pair(one, one)}).arrays) == [
        "k",
        "p.other",
        "p.value",
    ]
