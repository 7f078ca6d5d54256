"""Programs that whoever loads them can differentiate: proven at the export, checked by verify, refused in words."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters import SequenceSpec, SignatureSpec, TensorSpec, export_bundle, load_bundle, open_bundle
from converters.describe import summary
from converters.errors import BadInput, BadSpec, BundleError, ExportRefused, GoldenMismatch, NoGradient
from converters.golden import pack_goldens
from converters.manifest_json import parse_manifest
from converters.verify import verify
from tests.converters.conftest import IRIS, export_iris, iris, iris_params, iris_rows
from tests.converters.test_bundle import rewrite_manifest

LABELLED = {"x": TensorSpec("float32", "b, 4"), "label": TensorSpec("int32", "b")}


def loss(params: Any, x: jax.Array, label: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(iris(params, x)), label[:, None], axis=1)
    return -chosen.mean()


def labelled(rows: int) -> dict[str, np.ndarray]:
    return iris_rows(rows) | {"label": np.arange(rows, dtype=np.int32) % 3}


def signatures(**changed: Any) -> dict[str, SignatureSpec]:
    return {
        "predict": SignatureSpec(iris, IRIS, ("logits",), iris_rows(8), vjp_order=0),
        "loss": SignatureSpec(loss, LABELLED, ("loss",), labelled(8), **{"loss": True} | changed),
    }


@pytest.fixture(scope="module")
def trainable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/iris/1 with predict, which has no gradients, and loss of order 1; to be read only."""
    path = tmp_path_factory.mktemp("models") / "iris" / "1"
    return export_bundle(path, params=iris_params(), signatures=signatures(), vjp_order=1)


def named(params: Any) -> dict[str, Any]:
    return {f"layers.{i}.{key}": layer[key] for i, layer in enumerate(params["layers"]) for key in layer}


def close(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)


def test_gradients_of_the_loaded_program_are_those_of_the_function(trainable: Path) -> None:
    loaded, batch = load_bundle(trainable), labelled(5)

    def by_bundle(weights: Any, x: Any) -> Any:
        return loaded["loss"].apply(weights, x=x, label=batch["label"])["loss"]

    got = jax.jit(jax.grad(by_bundle, argnums=(0, 1)))(loaded.weights, batch["x"])
    want = jax.grad(lambda params, x: loss(params, x, batch["label"]), argnums=(0, 1))(
        iris_params(), batch["x"]
    )
    close(got, (named(want[0]), want[1]))
    assert float(np.abs(got[1]).max()) > 1e-3


def test_vjp_pulls_cotangents_of_the_outputs_back(tmp_path: Path) -> None:
    loaded = load_bundle(export_iris(tmp_path / "iris" / "1", vjp_order=1))
    x, cotangent = iris_rows(5)["x"], np.random.default_rng(4).normal(size=(5, 3)).astype(np.float32)
    outputs, pullback = loaded.vjp(loaded.on_device, x=x)
    want, back = jax.vjp(iris, iris_params(), x)
    close(outputs["logits"], want)
    of_weights, of_inputs = pullback({"logits": cotangent})
    close((of_weights, of_inputs["x"]), (named(back(cotangent)[0]), back(cotangent)[1]))


def test_it_is_in_the_manifest_only_where_it_says_something(trainable: Path, iris_bundle: Path) -> None:
    said = json.loads((trainable / "manifest.json").read_text())["signatures"]
    assert (said["loss"]["loss"], said["loss"]["vjp_order"]) == (True, 1)
    assert {"loss", "vjp_order"}.isdisjoint(said["predict"])
    assert {"loss", "vjp_order"}.isdisjoint(
        json.loads((iris_bundle / "manifest.json").read_text())["signatures"]["predict"]
    )
    told = summary(open_bundle(trainable))
    assert "gradients  up to order 1" in told and "loss       one number" in told
    assert '["loss"].apply(weights, x=x, label=label)["loss"], under jax.grad' in told
    assert "jaxport predict iris --signature loss" not in told


@pytest.mark.parametrize(
    "changes",
    [{"weights_dtype": "bf16"}, {"weights_dtype": "int8"}, {"calling_convention": 9}],
    ids=lambda changes: next(iter(changes)) + str(next(iter(changes.values()))),
)
def test_fewer_bits_and_an_older_convention_have_gradients(changes: dict[str, Any], tmp_path: Path) -> None:
    loaded = load_bundle(export_iris(tmp_path / "iris" / "1", vjp_order=1, **changes))
    x = iris_rows(5)["x"]
    floating = {name: w for name, w in loaded.weights.items() if w.dtype != np.int8}

    def total(weights: Any, x: Any) -> Any:
        return loaded.predict.apply(loaded.weights | weights, x=x)["logits"].sum()

    got = jax.grad(total, argnums=(0, 1))(floating, x)
    want = jax.grad(lambda params, x: iris(params, x).sum(), argnums=(0, 1))(iris_params(), x)
    for name in (
        floating.keys() & named(want[0]).keys()
    ):  # a weight that lost bits moves the others' gradients
        np.testing.assert_allclose(
            np.float32(got[0][name]), named(want[0])[name], rtol=0.05, atol=0.05, err_msg=name
        )
    np.testing.assert_allclose(got[1], want[1], rtol=0.05, atol=0.05)
    assert verify(loaded.bundle.path).goldens == 3


def test_further_symbols_have_gradients_at_any_size(tmp_path: Path) -> None:
    def scaled(params: Any, x: jax.Array) -> jax.Array:
        return (x * params["w"]).sum(-1)

    path = export_bundle(
        tmp_path / "m" / "1",
        scaled,
        {"w": np.ones((), np.float32)},
        inputs={"x": TensorSpec("float32", "b, k")},
        outputs=("y",),
        example={"x": iris_rows(8)["x"]},
        constraints=("k >= 2", "k <= 32"),
        platforms=("cpu",),
        vjp_order=1,
    )
    loaded = load_bundle(path)
    for size in (2, 5, 32):
        x = np.ones((3, size), np.float32)
        assert jax.grad(lambda w, x=x: loaded.predict.apply(w, x=x)["y"].sum())(loaded.weights) == {
            "w": 3 * size
        }


@pytest.mark.parametrize("said", [{"loss": 1}, {"vjp_order": -1}, {"vjp_order": True}, {"vjp_order": "1"}])
def test_a_manifest_that_says_something_else_is_refused(said: dict[str, Any], trainable: Path) -> None:
    raw = json.loads((trainable / "manifest.json").read_text())
    raw["signatures"]["loss"].update(said)
    with pytest.raises(BundleError, match="a field is missing or malformed"):
        parse_manifest(json.dumps(raw).encode(), "manifest.json")


def test_verify_runs_the_gradient(trainable: Path, tmp_path: Path) -> None:
    assert verify(trainable).goldens == 5  # two of each signature, and the gradient's
    path = Path(shutil.copytree(trainable, tmp_path / "iris" / "1"))
    bundle = open_bundle(path)
    golden = bundle.gradient_golden("loss")
    assert golden is not None
    changed = {"weights/layers.1.b": golden.outputs["weights/layers.1.b"] * np.float32(1.01)}
    replace_golden(path, replace(golden, outputs={**golden.outputs, **changed}))
    with pytest.raises(GoldenMismatch, match=r"loss batch 3 on cpu: output 'weights/layers\.1\.b' is off by"):
        verify(path)


def replace_golden(path: Path, golden: Any) -> None:
    import hashlib

    data = pack_goldens([golden])
    (path / "golden" / "loss.vjp.npz").write_bytes(data)
    digest = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    rewrite_manifest(path, lambda m: m["files"].update({"golden/loss.vjp.npz": digest}))


def test_what_was_exported_without_gradients_says_which_flag_gives_them(trainable: Path) -> None:
    loaded, x = load_bundle(trainable), iris_rows(2)["x"]
    flag = r"predict: was exported with gradients up to order 0, and 1 is asked for; .* with --vjp-order 1"
    with pytest.raises(NoGradient, match=flag):
        jax.grad(lambda w: loaded.predict.apply(w, x=x)["logits"].sum())(loaded.weights)
    with pytest.raises(NoGradient, match="order 1, and 2 is asked for; export it again with --vjp-order 2"):
        twice(loaded["loss"], loaded.weights)


def twice(function: Any, weights: Any) -> Any:
    batch = labelled(3)

    def first(x: Any) -> Any:
        return jax.grad(lambda x: function.apply(weights, x=x, label=batch["label"])["loss"])(x)

    return jax.grad(lambda x: (first(x) ** 2).sum())(batch["x"])


def test_a_second_order_is_there_where_it_is_asked_for(tmp_path: Path) -> None:
    smooth = signatures()["loss"].fn
    specs = {"loss": SignatureSpec(smooth, LABELLED, ("loss",), labelled(8), loss=True)}
    path = export_bundle(tmp_path / "m" / "1", params=iris_params(), signatures=specs, vjp_order=2)
    got = twice(load_bundle(path)["loss"], load_bundle(path).weights)

    def first(x: Any) -> Any:
        return jax.grad(lambda x: loss(iris_params(), x, labelled(3)["label"]))(x)

    close(got, jax.grad(lambda x: (first(x) ** 2).sum())(labelled(3)["x"]))


def test_jacrev_is_told_from_a_missing_gradient(trainable: Path) -> None:
    loaded, batch = load_bundle(trainable), labelled(2)
    with pytest.raises(BadInput, match=r"for jax\.jacrev take jax\.vjp once per output"):
        jax.jacrev(
            lambda x: loaded["loss"].apply(loaded.weights, x=x, label=batch["label"])["loss"] * jnp.ones(2)
        )(batch["x"])
    with pytest.raises(BadInput, match=r"take jax\.vjp or jax\.grad"):
        jax.jvp(lambda w: loaded["loss"].apply(w, **batch), (loaded.weights,), (loaded.weights,))


def mixed(params: Any, x: jax.Array, ids: jax.Array) -> dict[str, jax.Array]:
    """bfloat16 and int32 weights; an int input; an int output beside one of bfloat16."""
    h = params["table"][ids % params["size"]] * x.astype(jnp.bfloat16)
    return {"y": h, "best": jnp.argmax(h, axis=-1)}


def test_integers_and_bfloat16_have_their_part(tmp_path: Path) -> None:
    params = {"table": np.arange(12).reshape(4, 3).astype(jnp.bfloat16), "size": np.int32(4)}
    rows = {
        "x": np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32),
        "ids": np.arange(5, dtype=np.int32),
    }
    inputs = {"x": TensorSpec("float32", "b, 3"), "ids": TensorSpec("int32", "b")}
    path = export_bundle(
        tmp_path / "m" / "1", mixed, params, inputs=inputs, outputs=("y", "best"), example=rows, vjp_order=1
    )
    assert verify(path).goldens == 3
    loaded = load_bundle(path)
    assert sorted(loaded.bundle.gradient_golden().outputs) == ["inputs/x", "weights/table"]  # type: ignore[union-attr]
    got = jax.grad(
        lambda table: (
            loaded.predict.apply(loaded.weights | {"table": table}, **rows)["y"].astype(jnp.float32).sum()
        )
    )(params["table"])
    assert got.dtype == jnp.bfloat16
    with pytest.raises(TypeError, match="real- or complex-valued inputs"):  # JAX's own words name the dtype
        jax.grad(lambda ids: loaded.predict.apply(loaded.weights, x=rows["x"], ids=ids)["y"].sum())(
            rows["ids"]
        )


@jax.custom_vjp
def odd(x: jax.Array) -> jax.Array:
    return x * 2


odd.defvjp(lambda x: (x * 2, x), lambda x, ct: (ct * (2 if x.shape[0] != 1 else 5),))


def spinning(params: Any, x: jax.Array) -> jax.Array:
    """Eight times as much, by a loop whose end JAX cannot know."""
    start = (0, iris(params, x))
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), start)[1]


@pytest.mark.parametrize(
    ("code", "said", "fn"),
    [
        ("JP121", "Reverse-mode differentiation does not work for lax.while_loop", spinning),
        ("JP122", r"gradient of the program by its weights at batch 1: output 'layers.0.b' is off by", lambda p, x: odd(iris(p, x))),
    ],
)  # fmt: skip
def test_a_gradient_that_is_none_or_another_is_refused(code: str, said: str, fn: Any, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=said) as refused:
        export_iris(tmp_path / "m" / "1", fn, vjp_order=1)
    assert refused.value.code == code
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ("vjp_order: -1; 0 ", {"vjp_order": -1}),
        ("vjp_order: True; 0 ", {"vjp_order": True}),
        (r"no output is of floating point \(logits int32\[b\]\)", {"vjp_order": 1, "fn": lambda p, x: jnp.argmax(iris(p, x), -1)}),
    ],
)  # fmt: skip
def test_what_has_no_gradient_is_said(said: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=said):
        export_iris(tmp_path / "m" / "1", **changes)


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        (r"the function gives loss float32\[b\]; one number of floating point", {"fn": lambda p, x, label: iris(p, x)[:, 0]}),
        (r"the function gives loss int32\[\]; one number", {"fn": lambda p, x, label: label.sum()}),
        ("it has a sequence too", {"sequence": SequenceSpec("t", 4)}),
    ],
)  # fmt: skip
def test_a_loss_is_one_number(said: str, changes: dict[str, Any], tmp_path: Path) -> None:
    arguments = {"fn": loss, "inputs": LABELLED, "outputs": ("loss",), "example": labelled(8), "loss": True}
    with pytest.raises(BadSpec, match=said):
        export_bundle(
            tmp_path / "m" / "1",
            params=iris_params(),
            signatures={"loss": SignatureSpec(**arguments | changes)},
        )


def test_a_loss_that_differs_at_a_size_is_refused_as_any_function(tmp_path: Path) -> None:
    def sized(params: Any, x: jax.Array, label: jax.Array) -> jax.Array:
        value = loss(params, x, label)
        return value * 2 if x.shape[0] == 1 else value

    with pytest.raises(
        ExportRefused, match="signature 'loss': the exported program differs from the function at batch 1"
    ):
        specs = {"loss": SignatureSpec(sized, LABELLED, ("loss",), labelled(8), loss=True)}
        export_bundle(tmp_path / "m" / "1", params=iris_params(), signatures=specs)
