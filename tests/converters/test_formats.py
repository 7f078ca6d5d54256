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

from converters import formats, open_bundle
from converters.errors import BadSpec, BundleError, PlatformMissing
from converters.formats import ProvenBundle
from converters.verify import verify
from tests.converters.conftest import export_iris


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
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats" / "listing.py").touch()
    (tmp_path / "formats" / "absent.py").write_text("import nothing_of_that_name")
    monkeypatch.setattr(formats, "__path__", [str(tmp_path / "formats")])
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("listing")
def test_a_format_lies_in_the_bundle_with_digests_and_facts(tmp_path: Path) -> None:
    path = export_iris(tmp_path / "m" / "1", formats={"listing": {"suffix": "md"}})
    bundle = open_bundle(path)
    assert bundle.manifest.formats == {"listing": {"platforms": ["cpu", "cuda"], "batches": [0]}}
    assert bundle.read("listing/weights.md").decode().split() == [w.name for w in bundle.manifest.weights]
    assert verify(path).goldens == 2
    (path / "listing" / "weights.md").write_text("other")
    with pytest.raises(BundleError, match=r"listing/weights\.md: altered"):
        open_bundle(path)


@pytest.mark.usefixtures("listing")
def test_a_format_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="formats: 'other' is none; there are: absent, listing"):
        export_iris(tmp_path / "m" / "1", formats=("other",))
    with pytest.raises(PlatformMissing, match="absent needs nothing_of_that_name, which is not installed"):
        export_iris(tmp_path / "m" / "1", formats=("listing", "absent"))
    assert list((tmp_path / "m").glob("*")) == []


def test_without_one_the_manifest_is_as_before(iris_bundle: Path) -> None:
    assert "formats" not in json.loads((iris_bundle / "manifest.json").read_text())
