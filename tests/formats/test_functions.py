"""Small functions: what each format takes, what it refuses and with which words, and that a wrong answer is seen."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters import SequenceSpec, TensorSpec, export_bundle, open_bundle
from converters.bundle import digest_line
from converters.errors import BadSpec, BundleError, ConvertError, ExportRefused, GoldenMismatch
from converters.formats import ProvenBundle, ProvenSignature, onnx
from converters.manifest import ANY_BATCH, Signature, TensorInfo
from converters.verify import verify

ALL = ("savedmodel", "stablehlo", "onnx")
ROWS = {"x": np.random.default_rng(2).normal(size=(8, 4)).astype(np.float32)}
PARAMS = {"w": np.random.default_rng(3).normal(size=(4, 4)).astype(np.float32)}


def export(path: Path, fn: Any, formats: Any, **changes: Any) -> Path:
    arguments = {"inputs": {"x": TensorSpec("float32", "b, 4")}, "outputs": ("y",), "example": ROWS}
    return export_bundle(path, fn, PARAMS, platforms=("cpu",), formats=formats, **(arguments | changes))


def masked(params: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Has the length of its sequences in its shapes, a nested jit, and what JAX names a composite (erf)."""
    place = jnp.arange(x.shape[1]).astype(jnp.float32)[None, :, None] / 64
    hidden = jax.jit(lambda a: jax.nn.gelu(a @ params["w"], approximate=False))(x + place)
    return jnp.where(mask[..., None] > 0, hidden, 0.0)


@pytest.fixture(scope="session")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = np.random.default_rng(4).normal(size=(8, 16, 4)).astype(np.float32)
    return export_bundle(
        tmp_path_factory.mktemp("models") / "masked" / "1",
        masked,
        PARAMS,
        inputs={"x": TensorSpec("float32", "b, t, 4"), "mask": TensorSpec("float32", "b, t")},
        outputs=("y",),
        example={"x": rows, "mask": np.ones((8, 16), np.float32)},
        sequence=SequenceSpec("t", most=16),
        platforms=("cpu",),
        formats={"savedmodel": {}, "stablehlo": {"batches": (4,)}, "onnx": {}},
    )


def test_a_sequence_of_any_length_goes_into_each(sequences: Path) -> None:
    verdict = verify(sequences)
    assert [(one.name, one.goldens) for one in verdict.formats] == [
        (name, len(open_bundle(sequences).goldens())) for name in ALL
    ]
    facts = open_bundle(sequences).manifest.formats
    assert facts["stablehlo"]["signatures"]["predict"]["length"] == 16
    assert facts["onnx"]["signatures"]["predict"]["made_of"] == "primitives"


def pairs(params: Any, x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    """y is twice as long as x, which is of any length."""
    half = y.reshape(y.shape[0], -1, 2).sum(-1)
    return {"sum": x * params["w"][0, 0] + half, "both": y * params["w"][0, 0]}


def export_pairs(path: Path, formats: Any, **changes: Any) -> Path:
    rows = np.random.default_rng(5)
    inputs = {"x": TensorSpec("float32", "b, k"), "y": TensorSpec("float32", "b, 2*k")}
    example = {name: rows.normal(size=(4, size)).astype(np.float32) for name, size in (("x", 3), ("y", 6))}
    arguments = {"inputs": inputs, "outputs": ("sum", "both"), "example": example, "constraints": ("k >= 2",)}
    return export(path, pairs, formats, **(arguments | changes))


def test_sizes_of_further_symbols_go_into_each(tmp_path: Path) -> None:
    formats = {"savedmodel": {}, "stablehlo": {"batches": (4,)}, "onnx": {}}
    path = export_pairs(tmp_path / "m" / "1", formats, sizes={"k": (2, 5)})
    assert [(one.name, one.goldens) for one in verify(path).formats] == [(name, 4) for name in ALL]
    files = open_bundle(path).manifest.formats["stablehlo"]["signatures"]["predict"]["files"]
    assert files == {f"4,k={k}": f"stablehlo/predict.b4.k{k}.mlirbc" for k in (2, 5)}


def test_programs_of_fixed_shapes_need_to_know_the_sizes(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=r"stablehlo: 'predict' has sizes 'k' .* say which with sizes="):
        export_pairs(tmp_path / "m" / "1", ("stablehlo",))
    assert list((tmp_path / "m").glob("[0-9]*")) == []


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same function in two formats, its weights a hundredth off."""
    return export(
        tmp_path_factory.mktemp("models") / "other" / "1",
        lambda params, x, mask: masked({"w": params["w"] * 1.01}, x, mask),
        ("savedmodel", "onnx"),
        inputs={"x": TensorSpec("float32", "b, t, 4"), "mask": TensorSpec("float32", "b, t")},
        example={
            "x": np.ones((4, 16, 4), np.float32) * ROWS["x"][:4, None],
            "mask": np.ones((4, 16), np.float32),
        },
        sequence=SequenceSpec("t", most=16),
    )


@pytest.mark.parametrize("name", ["savedmodel", "onnx"])
def test_verify_sees_a_format_with_other_weights(
    sequences: Path, other_weights: Path, tmp_path: Path, name: str
) -> None:
    """Its digests are right: what is wrong is what it answers."""
    wrong = tmp_path / "masked" / "1"
    shutil.copytree(sequences, wrong)
    shutil.rmtree(wrong / name)
    shutil.copytree(other_weights / name, wrong / name)
    manifest = json.loads((wrong / "manifest.json").read_text())
    of_other = json.loads((other_weights / "manifest.json").read_text())["files"]
    manifest["files"].update({k: v for k, v in of_other.items() if k.startswith(f"{name}/")})
    data = json.dumps(manifest).encode()
    (wrong / "manifest.json").write_bytes(data)
    (wrong / "manifest.json.sha256").write_text(digest_line(data))
    with pytest.raises(GoldenMismatch, match=rf"{name} predict batch .* is off by") as error:
        verify(wrong)
    assert error.value.exit_code == 3


def solve(params: Any, x: jax.Array) -> jax.Array:
    return x @ jnp.linalg.cholesky(params["w"] @ params["w"].T + 4 * jnp.eye(4))


def unproven(fn: Any) -> ProvenSignature:
    """float32 [b, 4] -> the same, for what is refused before a proof is looked at."""
    signature = Signature(
        "predict", (TensorInfo("x", "float32", ("b", 4)),), (TensorInfo("y", "float32", ("b", 4)),), "b", (), {}, ""
    )  # fmt: skip
    return ProvenSignature(
        signature, lambda weights, inputs: {"y": fn(weights, **inputs)}, {ANY_BATCH: Any}, Any
    )  # pyright: ignore


@pytest.mark.parametrize("name", ["savedmodel", "stablehlo"])
def test_what_only_jaxlib_has_is_named(name: str) -> None:
    from converters.formats.lowering import lower, portable

    with pytest.raises(
        ExportRefused, match=rf"{name}: the program calls lapack_spotrf_ffi, which only jaxlib has"
    ):
        portable(name, lower(unproven(solve), PARAMS, ("cpu",)), "1.13.0")


def test_an_operator_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    def drawn(params: Any, x: jax.Array) -> jax.Array:
        return x * jax.random.gamma(jax.random.key(0), jnp.abs(params["w"][0]) + 1)

    named = r"onnx: jax2onnx \S+ has nothing for the operator 'random_\w+' of 'predict'"
    with pytest.raises(ExportRefused, match=named):
        onnx.write(tmp_path, ProvenBundle("m", {"predict": unproven(drawn)}, PARAMS, ("cpu",), {}))


def test_a_graph_that_answers_otherwise_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "by_name", lambda one, weights: lambda w, x: (x @ w * 1.01,))
    with pytest.raises(GoldenMismatch, match=r"onnx predict batch 1 by onnxruntime .* is off by"):
        export(tmp_path / "m" / "1", lambda params, x: x @ params["w"], ("onnx",))
    assert list((tmp_path / "m").glob("[0-9]*")) == []


def test_many_weights_lie_beside_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "MOST_INSIDE", 0)
    wide = {"w": np.ones((4, 512), np.float32)}
    path = export_bundle(
        tmp_path / "m" / "1", lambda params, x: x @ params["w"], wide, inputs={"x": TensorSpec("float32", "b, 4")},
        outputs=("y",), example=ROWS, platforms=("cpu",), formats=("onnx",),
    )  # fmt: skip
    assert open_bundle(path).manifest.files["onnx/predict.onnx.data"].bytes >= wide["w"].nbytes
    assert verify(path).formats[0].goldens == 2


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ({"savedmodel": {"platforms": ("cuda",)}}, r"savedmodel: platforms cuda; cpu is needed"),
        ({"stablehlo": {"batches": (0,)}}, r"stablehlo: batches \[0\]; whole numbers from 1 are needed"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, formats: Any, message: str) -> None:
    with pytest.raises(BadSpec, match=message):
        export(tmp_path / "m" / "1", lambda params, x: x @ params["w"], formats)


def test_a_savedmodel_that_is_none_is_told_in_one_line(sequences: Path, tmp_path: Path) -> None:
    broken = tmp_path / "masked" / "1"
    shutil.copytree(sequences, broken)
    (broken / "savedmodel" / "1" / "saved_model.pb").write_bytes(b"none")
    with pytest.raises(BundleError, match=r"saved_model\.pb: altered") as error:
        verify(broken)
    assert isinstance(error.value, ConvertError)
    assert "\n" not in str(error.value)
