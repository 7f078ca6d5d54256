"""Sizes beside the batch that are symbols: declared, bounded, proven at several values, and in the manifest."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters import SequenceSpec, TensorSpec, export_bundle, load_bundle, open_bundle
from converters.describe import summary
from converters.dims import holds, size, symbols
from converters.errors import BadInput, BadSpec, BundleError, ExportRefused
from converters.manifest_json import parse_manifest
from converters.verify import verify
from tests.serve_grpc.bundles import pairs, pairs_inputs

INPUTS = {"x": TensorSpec("float32", "b, k"), "y": TensorSpec("float32", "b, 2*k")}


def export(path: Path, fn: Callable[..., Any] = pairs, **changes: Any) -> Path:
    arguments: dict[str, Any] = {
        "inputs": INPUTS,
        "outputs": ("sum", "both"),
        "example": pairs_inputs(4, 3),
        "platforms": ("cpu",),
        "constraints": ("k >= 2",),
    }
    return export_bundle(path, fn, {"w": np.float32(3)}, **(arguments | changes))


def test_bounds_are_proven_shown_and_recorded(tmp_path: Path) -> None:
    path = export(tmp_path / "m" / "1", constraints=("k >= 2", "k <= 9"), sizes={"k": (4, 2, 4)})
    bundle = open_bundle(path)
    signature = bundle.signature()
    assert [t.shape for t in (*signature.inputs, *signature.outputs)] == [
        ("b", "k"), ("b", "2*k"), ("b", "k"), ("b", "2*k")
    ]  # fmt: skip
    assert signature.bounds == {"k": (2, 9), "2*k": (4, 18)}
    assert signature.sizes == {"k": (2, 4)}
    assert [t.shape for t in signature.at_sizes({"k": 4}).inputs] == [("b", 4), ("b", 8)]
    told = summary(bundle)
    assert "size       k: 2 to 9; a server compiles 2, 4" in told and "size       2*k: 4 to 18" in told
    assert [(g.batch, g.sizes) for g in bundle.goldens()] == [(n, {"k": k}) for k in (2, 4) for n in (1, 3)]
    assert verify(path).goldens == 4
    got = bundle.exported().call(bundle.load_weights(), pairs_inputs(2, 7))
    np.testing.assert_allclose(
        got["sum"], pairs({"w": np.float32(3)}, **pairs_inputs(2, 7))["sum"], rtol=1e-5
    )


def test_without_sizes_it_is_proven_at_several_and_no_server_takes_it(tmp_path: Path) -> None:
    path = export(tmp_path / "m" / "1")
    bundle = open_bundle(path)
    assert {g.sizes["k"] for g in bundle.goldens()} == {2, 3, 4}
    assert bundle.signature().bounds == {"k": (2, None), "2*k": (4, None)}
    assert "k: at least 2" in summary(bundle) and "no server takes it: " in summary(bundle)
    assert "sizes" not in json.loads((path / "manifest.json").read_text())["signatures"]["predict"]
    with pytest.raises(ExportRefused, match=r"differs from the function at batch 1 k 2"):
        export(
            tmp_path / "m" / "2",
            lambda params, x, y: pairs(params, x, y) if x.shape[1] != 2 else pairs(params, x * 2, y),
        )


def test_a_sequence_and_a_further_symbol_share_one_scope(tmp_path: Path) -> None:
    def fn(params: Any, tokens: jax.Array, table: jax.Array) -> jax.Array:
        return jnp.cumsum(jnp.take_along_axis(table, tokens % table.shape[1], axis=1), axis=1) * params["w"]

    rng = np.random.default_rng(0)
    path = export(
        tmp_path / "m" / "1",
        fn,
        inputs={"tokens": TensorSpec("int32", "b, t"), "table": TensorSpec("float32", "b, k")},
        outputs=("y",),
        example={
            "tokens": rng.integers(0, 3, (4, 5)).astype(np.int32),
            "table": rng.normal(size=(4, 3)).astype(np.float32),
        },
        sequence=SequenceSpec("t", 6),
        sizes={"k": (2, 3)},
    )
    signature = open_bundle(path).signature()
    assert [each.inputs[1].shape for each in signature.compiled] == [("b", 2), ("b", 3)]
    assert {(g.length, g.sizes["k"]) for g in open_bundle(path).goldens()} == {
        (n, k) for n in (3, 6) for k in (2, 3)
    }


def test_placeholders_take_the_sizes_of_the_example(tmp_path: Path) -> None:
    path = export(
        tmp_path / "m" / "1",
        inputs={"x": TensorSpec("float32", "b, _"), "y": TensorSpec("float32", "b, ...")},
        constraints=(),
    )
    signature = open_bundle(path).signature()
    assert [t.shape for t in signature.inputs] == [("b", 3), ("b", 6)]
    assert "bounds" not in json.loads((path / "manifest.json").read_text())["signatures"]["predict"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"constraints": ("k > 2",)}, r"constraints: \['k > 2'\] \(Constraint parsing error"),
        ({"constraints": ("b <= 4",)}, "'b <= 4' is about 'b'; only symbols .* here k"),
        ({"constraints": ("n >= 4",)}, "is about 'n'"),
        ({"constraints": ("k >= 4",)}, r"example: \{'k': 3\} is outside of the constraints"),
        ({"sizes": {"n": (2,)}}, r"sizes: has \['n'\], the symbols beside the batch .* are \['k'\]"),
        ({"sizes": {"k": ()}}, "some sizes of at least 1"),
        ({"sizes": {"k": (0,)}}, "some sizes of at least 1"),
        ({"sizes": {"k": (1,)}}, r"make 0 programs to compile under \['k >= 2'\]"),
        ({"sizes": {"k": range(2, 19)}}, "make 17 programs to compile .*; 1 to 16 are served"),
        ({"example": {"x": np.ones((2, 3), np.float32), "y": np.ones((2, 5), np.float32)}}, r"'y': is float32\[2, 5\], the input is y float32\[b, 2\*k\], and k is 3"),
    ],
)  # fmt: skip
def test_a_declaration_that_does_not_fit_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadSpec, match=said):
        export(tmp_path / "m" / "1", **changes)


def test_an_output_may_be_made_of_declared_symbols_alone(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"\[b, b\]"):
        export(tmp_path / "m" / "1", lambda params, x, y: {"sum": x @ x.T, "both": y})


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["sizes"].update(k=[]),
        lambda s: s["sizes"].update(k=[-1]),
        lambda s: s["sizes"].update(k=["2"]),
        lambda s: s["sizes"].update(k=list(range(2, 30))),
        lambda s: s["sizes"].update(n=[2]),
        lambda s: s.update(sizes=[2]),
        lambda s: s["inputs"][1].update(shape=["b", "__import__('os')"]),
        lambda s: s["inputs"][1].update(shape=["b", "9^9^9^9^9*k"]),
        lambda s: s["inputs"][1].update(shape=["b", "k - 9"]),
        lambda s: s["inputs"][1].update(shape=["b", "(" * 150 + "k" + ")" * 49]),
        lambda s: s["inputs"][1].update(shape=["b", "floordiv(k, 0)"]),
        lambda s: s.update(constraints=["k"]),
        lambda s: s["bounds"].update(k=["2", None]),
        lambda s: s["bounds"].update(k=[2]),
    ],
)
def test_sizes_that_the_shapes_do_not_bear_out_are_no_manifest(
    change: Any, tmp_path_factory: Any, pairs_manifest: str
) -> None:
    manifest = json.loads(pairs_manifest)
    parse_manifest(json.dumps(manifest).encode(), "m")
    change(manifest["signatures"]["predict"])
    with pytest.raises(BundleError, match="a field is missing or malformed"):
        parse_manifest(json.dumps(manifest).encode(), "m")


@pytest.fixture(scope="module")
def pairs_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("models") / "m" / "1", sizes={"k": (2,)})


@pytest.fixture(scope="module")
def pairs_manifest(pairs_bundle: Path) -> str:
    return (pairs_bundle / "manifest.json").read_text()


def test_dimensions_are_computed_as_jax_means_them() -> None:
    (*_,) = texts = ("k", "2*k + 1", "k^2 - k", "floordiv(k, 2)", "mod(k + n, 3)", "max(k, n)", "-1*n + 8")
    dims = jax.export.symbolic_shape(", ".join(texts))
    for text, dim in zip(texts, dims, strict=True):
        assert symbols(str(dim)) <= {"k", "n"} and size(str(dim), {"k": 5, "n": 4}) == size(
            text, {"k": 5, "n": 4}
        )
    assert [size(t, {"k": 5, "n": 4}) for t in texts] == [5, 11, 20, 2, 0, 5, 4]
    assert holds("k >= n + 1", {"k": 5, "n": 4}) and not holds("k == n", {"k": 5, "n": 4})


def test_a_call_whose_sizes_do_not_go_together_is_told_which_is_needed(
    tmp_path: Path, pairs_bundle: Path
) -> None:
    """Whether the symbol itself stands in an input before, in one behind, or in none."""
    predict = load_bundle(pairs_bundle).predict
    assert predict(**pairs_inputs(2, 5))["both"].shape == (2, 10)
    wrong = pairs_inputs(2, 5) | {"y": np.zeros((2, 11), np.float32)}
    with pytest.raises(BadInput, match=r"'y' is float32\[2, 11\]; needed: float32\[2, 10\], where k is 5$"):
        predict(**wrong)
    signature = predict.signature
    predict.signature = replace(signature, inputs=signature.inputs[::-1])
    with pytest.raises(BadInput, match=r"'y' is float32\[2, 11\]; needed: float32\[2, 10\], where k is 5$"):
        predict(**wrong)
    with pytest.raises(
        BadInput, match=r"'y' is float32\[2, 0\]; needed: float32\[b, 2\*k\], b at least 1, 2\*k at least 1"
    ):
        predict(**(wrong | {"y": np.zeros((2, 0), np.float32)}))
    first = replace(signature.inputs[1], shape=("b", "floordiv(8, k - 5)"))
    predict.signature = replace(signature, inputs=(signature.inputs[0], first))
    with pytest.raises(BadInput, match=r"floordiv by 0 in a dimension, where k is 5$"):
        predict(**wrong)
    alone = export(
        tmp_path / "m" / "1",
        lambda params, y: {"both": y * params["w"]},
        inputs={"y": INPUTS["y"]},
        outputs=("both",),
        example={"y": np.ones((4, 6), np.float32)},
        constraints=(),
    )
    loaded, odd = load_bundle(alone), {"y": np.ones((2, 5), np.float32)}
    for call in (loaded.predict, functools.partial(jax.jit(loaded.predict.apply), loaded.weights)):
        with pytest.raises(
            BadInput, match=r"needed: y float32\[b, 2\*k\] \(Division had remainder 1"
        ) as refused:
            call(**odd)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
