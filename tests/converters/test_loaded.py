"""A bundle as an object of a Python process: predictions, functions, and what is said of wrong arguments."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import converters
from converters import export_bundle, load_bundle
from converters.errors import BadInput, BundleError, BundleNotFound, PlatformMissing
from tests.converters.conftest import iris, iris_params, iris_rows
from tests.converters.test_bundle import rewrite_manifest
from tests.converters.test_signatures import hidden, specs
from tests.converters.test_verify import READER
from tests.serve_grpc.bundles import LONGEST, export_every_dtype

# What loads a program, beside what reads a bundle.
LOADER = (*READER, "run", "gradient", "placement", "loaded")
ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
known = ("flax", "optax", "tensorflow", "train_job", "grpc")
sys.modules.update(dict.fromkeys(known))
import numpy as np
from converters import load_bundle
loaded = load_bundle(sys.argv[2])
for golden in loaded.bundle.goldens():
    loaded.bundle.check_golden("predict", golden, loaded.predict(**golden.inputs), "cpu")
    print("batch", golden.batch)
"""


def test_it_predicts_with_the_weights_of_the_bundle(iris_bundle: Path) -> None:
    loaded, x = load_bundle(iris_bundle), iris_rows(5)["x"]
    got = loaded.predict(x=x)
    assert type(got["logits"]) is np.ndarray
    np.testing.assert_allclose(got["logits"], iris(iris_params(), x), rtol=1e-5, atol=1e-5)
    assert sorted(loaded.weights) == ["layers.0.b", "layers.0.w", "layers.1.b", "layers.1.w"]
    assert repr(loaded.predict).endswith("predict: x float32[b, 4] -> logits float32[b, 3]>")


def test_a_few_files_and_the_libraries_they_name_are_all_it_needs(iris_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "converters").mkdir()
    for name in LOADER:
        shutil.copy(Path(converters.__file__).parent / f"{name}.py", tmp_path / "converters")
    command = [sys.executable, "-I", "-c", ALONE, str(tmp_path), str(iris_bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["batch", "1", "batch", "3"], done.stderr


def test_every_signature_is_there_by_name(tmp_path: Path) -> None:
    loaded = load_bundle(export_bundle(tmp_path / "m" / "1", params=iris_params(), signatures=specs()))
    x = iris_rows(3)["x"]
    np.testing.assert_allclose(
        loaded["embed"](x=x)["features"], hidden(iris_params(), x), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(BundleNotFound, match="no signature 'nothing'; it has embed, predict"):
        loaded["nothing"]


def test_other_weights_go_through_the_same_program(iris_bundle: Path) -> None:
    apply = jax.jit(load_bundle(iris_bundle).predict.apply)
    other = load_bundle(iris_bundle).weights | {"layers.1.b": np.float32([1, 2, 3])}
    x = iris_rows(2)["x"]
    before, after = apply(load_bundle(iris_bundle).weights, x=x), apply(other, x=x)
    np.testing.assert_allclose(after["logits"] - before["logits"], [[1, 2, 3]] * 2, rtol=1e-4)


def test_a_sequence_takes_any_length_up_to_its_longest(sequences: Path) -> None:
    predict = load_bundle(sequences / "sequence" / "1").predict
    tokens, keep = np.ones((2, 5), np.int32), np.ones((2, 5), bool)
    assert predict(tokens=tokens, keep=keep)["running"].shape == (2, 5, 3)
    with pytest.raises(BadInput, match=r"'keep' is bool\[2, 4\]; needed: bool\[2, 5\]$"):
        predict(tokens=tokens, keep=keep[:, :4])
    with pytest.raises(BadInput, match=rf"int32\[b, t\], b at least 1, t from 1 to {LONGEST}$"):
        predict(tokens=np.ones((2, LONGEST + 1), np.int32), keep=keep)


@pytest.mark.parametrize(
    ("said", "inputs"),
    [
        (r"predict: 'x' is missing; it takes x float32\[b, 4\]", {}),
        (r"predict: 'y' is no input; it takes x float32\[b, 4\]", {"y": 1} | iris_rows(1)),
        (r"input 'x' is float64\[2, 4\]; needed: float32\[b, 4\], b at least 1", {"x": np.ones((2, 4))}),
        (r"input 'x' is float32\[2, 5\]; needed", {"x": np.ones((2, 5), np.float32)}),
        (r"input 'x' is float32\[4\]; needed", {"x": np.ones(4, np.float32)}),
        (r"input 'x' is float32\[0, 4\]; needed", {"x": np.ones((0, 4), np.float32)}),
        (r"input 'x' is list\[\]; needed", {"x": [[1], [1, 2]]}),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_named(said: str, inputs: dict[str, Any], iris_bundle: Path) -> None:
    predict = load_bundle(iris_bundle).predict
    with pytest.raises(BadInput, match=said):
        predict(**inputs)
    with pytest.raises(BadInput, match=said):
        predict.apply(load_bundle(iris_bundle).weights, **inputs)


def test_weights_that_do_not_fit_are_named(iris_bundle: Path) -> None:
    loaded, x = load_bundle(iris_bundle), iris_rows(1)["x"]
    with pytest.raises(BadInput, match=r"weight 'layers.0.b' is missing; pass all of loaded\.weights"):
        loaded.predict.apply({}, x=x)
    with pytest.raises(BadInput, match="'other' is no weight"):
        loaded.predict.apply(loaded.weights | {"other": x}, x=x)
    with pytest.raises(BadInput, match=r"weight 'layers.0.b' is float32\[1\]; needed: float32\[64\]$"):
        loaded.predict.apply(loaded.weights | {"layers.0.b": np.ones(1, np.float32)}, x=x)


def test_what_an_exported_program_has_no_rule_for_is_said(iris_bundle: Path) -> None:
    loaded = load_bundle(iris_bundle)
    with pytest.raises(BadInput, match=r"jax\.vmap cannot go through an exported program"):
        jax.vmap(lambda x: loaded.predict.apply(loaded.weights, x=x))(np.ones((2, 3, 4), np.float32))


def test_64_bits_are_kept_without_asking_the_process_for_them(tmp_path: Path) -> None:
    loaded = load_bundle(export_every_dtype(tmp_path))
    with jax.enable_x64(False):
        for golden in loaded.bundle.goldens():
            got = loaded.predict(**golden.inputs)
            assert loaded.bundle.check_golden("predict", golden, got, "cpu") == 0
        with pytest.raises(BadInput, match=r"arrays of float64, int64, uint64, which JAX keeps only with"):
            loaded.predict.apply(loaded.weights, **golden.inputs)


def test_nothing_is_loaded_of_a_bundle_that_was_altered(
    iris_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(iris_bundle, tmp_path / "iris" / "1"))
    (path / "golden" / "predict.npz").write_bytes(b"other")  # not even what is looked at last
    for name in ("exported", "load_weights", "goldens"):
        monkeypatch.setattr(f"converters.bundle.Bundle.{name}", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(BundleError, match=r"predict\.npz: altered or damaged"):
        load_bundle(path)
    rewrite_manifest(path, lambda m: m.update(platforms=["cuda"]))
    shutil.copy(iris_bundle / "golden" / "predict.npz", path / "golden" / "predict.npz")
    with pytest.raises(
        PlatformMissing, match="has programs for cuda, this machine is cpu; use it on one of those"
    ):
        load_bundle(path)
