"""A reader trusts nothing it has not hashed."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from converters.bundle import digest_line, list_models, list_versions, open_bundle, read_manifest
from converters.errors import BundleError, BundleNotFound, GoldenMismatch
from tests.converters.conftest import iris, iris_params, iris_rows


@pytest.fixture
def copy(iris_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(iris_bundle, tmp_path / "iris" / "1"))


def files(bundle: Path) -> Iterator[Path]:
    return (path for path in sorted(bundle.rglob("*")) if path.is_file())


def test_the_loaded_program_answers_as_the_function_does(iris_bundle: Path) -> None:
    bundle = open_bundle(iris_bundle)
    program, weights = bundle.exported(), bundle.load_weights()
    for rows in (1, 3, 7, 64, 100):
        inputs = iris_rows(rows)
        want = jax.jit(iris)(iris_params(), **inputs)
        np.testing.assert_allclose(program.call(weights, inputs)["logits"], want, rtol=1e-5, atol=1e-5)


def test_weights_keep_names_shapes_and_bytes(iris_bundle: Path) -> None:
    weights = open_bundle(iris_bundle).load_weights()
    assert list(weights) == ["layers.0.b", "layers.0.w", "layers.1.b", "layers.1.w"]
    np.testing.assert_array_equal(weights["layers.0.w"], iris_params()["layers"][0]["w"])


def test_goldens_are_for_one_row_and_a_ragged_batch(iris_bundle: Path) -> None:
    assert [golden.batch for golden in open_bundle(iris_bundle).goldens()] == [1, 3]


def test_a_flipped_byte_in_any_file_is_named(copy: Path) -> None:
    for path in files(copy):
        intact = path.read_bytes()
        for position in {0, len(intact) // 2, len(intact) - 1} if intact else ():
            changed = bytearray(intact)
            changed[position] ^= 0x01
            path.write_bytes(changed)
            with pytest.raises(BundleError) as refusal:
                open_bundle(copy)
            # The manifest and its digest vouch for each other: either may be the altered one.
            assert path.name.removesuffix(".sha256") in str(refusal.value)
        path.write_bytes(intact)
    open_bundle(copy)


def test_a_truncated_or_longer_or_missing_file_is_named(copy: Path) -> None:
    for path in files(copy):
        intact = path.read_bytes()
        for content in (intact[:-1], intact + b"\0", None):
            if content == intact:
                continue
            path.unlink() if content is None else path.write_bytes(content)
            with pytest.raises(BundleError, match=path.name.removesuffix(".sha256")):
                open_bundle(copy)
            path.write_bytes(intact)
    open_bundle(copy)


def test_a_file_that_the_manifest_does_not_know_is_refused_among_the_weights(copy: Path) -> None:
    (copy / "weights" / "more").write_text("")
    with pytest.raises(BundleError, match="more: not in the manifest"):
        open_bundle(copy)


def test_bytes_that_change_after_opening_are_caught_when_they_are_parsed(copy: Path) -> None:
    bundle = open_bundle(copy)
    for path in (copy / "programs" / "predict.jaxexport", copy / "golden" / "predict.npz"):
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(BundleError, match=r"predict\.jaxexport"):
        bundle.exported()
    with pytest.raises(BundleError, match=r"predict\.npz"):
        bundle.goldens()


def test_a_pipe_where_a_file_should_be_is_refused_and_not_waited_for(copy: Path) -> None:
    program = copy / "programs" / "predict.jaxexport"
    program.unlink()
    os.mkfifo(program)
    with pytest.raises(BundleError, match=r"predict\.jaxexport: not a regular file"):
        open_bundle(copy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda s: (s["inputs"][0].update(name="y"), s.update(pad={"y": 0})),
            "input 'x' of 'predict' is absent, the program has",
        ),
        (
            lambda s: s["inputs"][0].update(dtype="int32"),
            r"input 'x' of 'predict' is int32\[b, 4\], the program",
        ),
        (lambda s: s["outputs"][0].update(shape=["b", 4]), r"output 'logits' .* has float32\[b, 3\]"),
    ],
)
def test_a_manifest_that_says_other_than_its_program_is_refused(copy: Path, change, said: str) -> None:
    rewrite_manifest(copy, lambda m: change(m["signatures"]["predict"]))
    with pytest.raises(BundleError, match=said):
        open_bundle(copy).exported()


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.update(shape=[2**20, 2**20, 2**20]),
        lambda w: w.update(dtype="float33"),
        lambda w: w.update(name="no.such.weight"),
    ],
)
def test_weights_that_are_not_what_the_manifest_says_are_refused(copy: Path, change) -> None:
    rewrite_manifest(copy, lambda m: change(m["weights"][0]))
    with pytest.raises(BundleError, match="not the weights of"):
        open_bundle(copy).load_weights()


def test_weights_of_another_bundle_under_right_file_digests_are_caught(copy: Path) -> None:
    """Each weight has a digest of its own bytes, whatever file holds them."""
    rewrite_manifest(copy, lambda m: m["weights"][0].update(sha256="0" * 64))
    with pytest.raises(BundleError, match=r"layers\.0\.b"):
        open_bundle(copy).load_weights()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(schema_version=2), "schema_version is 2, this jaxport reads 1"),
        (lambda m: m.pop("platforms"), "a field is missing or malformed"),
        (lambda m: m.update(platforms=[]), "platforms and signatures may not be empty"),
        (lambda m: m.update(provenance=None), "a field is missing or malformed"),
        (lambda m: m.update(usage={"task": "\ud800"}), r"usage\.task is '.ud800'; needed: text"),
        (lambda m: m.update(window_ends=None), "a field is missing or malformed"),
        (lambda m: m["files"].update({"../../secret": {"sha256": "", "bytes": 0}}), "leaves the bundle"),
    ],
)
def test_a_manifest_that_is_not_understood_is_refused(copy: Path, change, said: str) -> None:
    rewrite_manifest(copy, change)
    with pytest.raises(BundleError, match=said):
        open_bundle(copy)


def rewrite_manifest(bundle: Path, change) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    (bundle / "manifest.json.sha256").write_text(digest_line(path.read_bytes()))


def test_a_wrong_result_is_outside_every_tolerance(iris_bundle: Path) -> None:
    """Weights that are a little off are caught on every platform, TF32's wide tolerance included."""
    bundle = open_bundle(iris_bundle)
    (golden, *_) = bundle.goldens()
    weights = {name: w * np.float32(1.1) for name, w in bundle.load_weights().items()}
    wrong = {"logits": np.asarray(bundle.exported().call(weights, golden.inputs)["logits"])}
    for platform in bundle.manifest.platforms:
        with pytest.raises(GoldenMismatch, match=f"batch 1 on {platform}: output 'logits' is off by"):
            bundle.check_golden("predict", golden, wrong, platform)


def test_the_tolerance_of_every_platform_is_below_what_a_wrong_row_shows(iris_bundle: Path) -> None:
    bundle = open_bundle(iris_bundle)
    want = bundle.goldens()[-1].outputs["logits"]
    for outputs in bundle.manifest.tolerances.values():
        t = outputs["predict/logits"]
        assert t.atol + t.rtol * float(np.abs(want).max()) < t.wrong


def test_a_nan_that_the_function_did_not_give_is_a_mismatch(iris_bundle: Path) -> None:
    bundle = open_bundle(iris_bundle)
    golden = bundle.goldens()[-1]
    broken = golden.outputs["logits"].copy()
    broken[1, 2] = np.nan
    with pytest.raises(GoldenMismatch, match=r"off by inf at \[1, 2\]"):
        bundle.check_golden("predict", golden, {"logits": broken}, "cpu")


def test_versions_are_positive_integers_and_the_rest_is_ignored(iris_bundle: Path, tmp_path: Path) -> None:
    model = tmp_path / "iris"
    for name in ("1", "10", "2", ".claim-3", "labels", "007", "-4", "0", "5.tmp", "٣", str(2**63)):
        shutil.copytree(iris_bundle, model / name)
    (model / "11").mkdir()  # no manifest in it
    assert list_versions(model) == [1, 2, 10]
    assert list_models(tmp_path) == ["iris"]
    assert list_versions(tmp_path / "none") == []


def test_a_folder_without_a_bundle_says_what_a_bundle_is(iris_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleNotFound, match="its versions are 1"):
        read_manifest(iris_bundle.parent)
    with pytest.raises(BundleNotFound, match="no such folder"):
        open_bundle(tmp_path / "no")
