"""A further format: written before the manifest, so that its files have digests and its facts are in there."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from converters import SignatureSpec, export_bundle, formats, open_bundle
from converters.describe import summary
from converters.errors import BadSpec, BundleError, LibraryMissing
from converters.formats import Format, ProvenBundle
from converters.formats.answers import Written
from converters.verify import FormatVerdict, verdict_lines, verify
from tests.converters.conftest import IRIS, export_iris, iris, iris_params, iris_rows


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A format that writes down which weights each signature's function uses, as a module of the folder would."""

    def write(folder: Path, proven: ProvenBundle, suffix: str = "txt") -> Mapping[str, Any]:
        (one,) = proven.signatures.values()
        golden = one.proof.goldens[-1]
        again = jax.jit(one.function)(dict(proven.weights), dict(golden.inputs))
        np.testing.assert_allclose(again["logits"], golden.outputs["logits"], rtol=1e-5)
        (folder / "listing").mkdir()
        (folder / "listing" / f"weights.{suffix}").write_text("\n".join(proven.weights))
        return {"platforms": list(proven.platforms), "batches": list(one.exported)}

    module = ModuleType("converters.formats.listing")
    module.write = write  # pyright: ignore[reportAttributeAccessIssue]
    known = {
        "listing": Format(),
        "absent": Format(("nothing_of_that_name",), "export-nothing", ("nothing_of_that_name.inside",)),
    }
    monkeypatch.setattr(formats, "FORMATS", known)
    monkeypatch.setattr("converters.verify.FORMATS", known)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("listing")
def test_a_format_lies_in_the_bundle_with_digests_and_facts(tmp_path: Path) -> None:
    path = export_iris(tmp_path / "m" / "1", formats={"listing": {"suffix": "md"}})
    bundle = open_bundle(path)
    assert bundle.manifest.formats == {"listing": {"platforms": ["cpu", "cuda"], "batches": [0]}}
    assert bundle.read("listing/weights.md").decode().split() == [w.name for w in bundle.manifest.weights]
    assert verify(path).formats == (FormatVerdict("listing", not_run="nothing here runs it"),)
    assert list(verdict_lines(verify(path)))[1:] == [
        "cuda: lowered only, this machine is cpu",
        "listing: not run, nothing here runs it",
    ]
    assert "listing      " in summary(open_bundle(path))
    (path / "listing" / "weights.md").write_text("other")
    with pytest.raises(BundleError, match=r"listing/weights\.md: altered"):
        open_bundle(path)


@pytest.mark.usefixtures("listing")
def test_a_format_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="formats: 'other' is none; there are: listing, absent"):
        export_iris(tmp_path / "m" / "1", formats=("other",))
    needs = (
        r"absent needs nothing_of_that_name, which is not installed; pip install 'jaxport\[export-nothing\]'"
    )
    with pytest.raises(LibraryMissing, match=needs):
        export_iris(tmp_path / "m" / "1", formats=("listing", "absent"))
    assert list((tmp_path / "m").glob("*")) == []


def test_a_library_that_is_missing_is_told_of_before_any_work(tmp_path: Path) -> None:
    """None of them is in this environment: make test-formats has one of its own."""

    def never(params: Any, x: Any) -> Any:
        raise AssertionError("the function was traced")

    for name, module, extra in (
        ("savedmodel", "tensorflow", "export-tf"),
        ("onnx", "jax2onnx", "export-onnx"),
    ):
        with pytest.raises(LibraryMissing, match=rf"{name} needs {module}, .*jaxport\[{extra}\]") as error:
            export_iris(tmp_path / "m" / "1", fn=never, formats=(name,))
        assert error.value.exit_code == 4
    assert not (tmp_path / "m").exists()


@pytest.mark.usefixtures("listing")
def test_losses_alone_have_nothing_that_a_format_holds(tmp_path: Path) -> None:
    loss = SignatureSpec(lambda params, x: iris(params, x).mean(), IRIS, ("loss",), iris_rows(4), loss=True)
    with pytest.raises(BadSpec, match=r"formats: listing beside losses alone; .* add such a signature"):
        export_bundle(
            tmp_path / "m" / "1", params=iris_params(), signatures={"loss": loss}, formats=("listing",)
        )


def test_facts_name_files_that_digests_vouch_for(tmp_path: Path) -> None:
    files = ("onnx/predict.onnx", "savedmodel/1/saved_model.pb")
    written = Written(tmp_path, {}, dict, files)
    assert written.at("savedmodel/1") == tmp_path / "savedmodel" / "1"
    assert written.at("onnx/predict.onnx") == tmp_path / "onnx" / "predict.onnx"
    for name in ("../other/1/onnx/predict.onnx", "/etc/passwd", "onnx/predict", "savedmodel/1/..", ""):
        with pytest.raises(BundleError, match="which is none of its files"):
            written.at(name)


def test_without_one_the_manifest_is_as_before(iris_bundle: Path) -> None:
    assert "formats" not in json.loads((iris_bundle / "manifest.json").read_text())
