"""Several functions of the same params in one bundle: a program each, the weights once."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from converters import SignatureSpec, export_bundle, open_bundle
from converters.describe import summary
from converters.errors import BadSpec, ExportRefused
from converters.verify import verify
from tests.converters.conftest import IRIS, iris, iris_params, iris_rows


def hidden(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params["layers"][0]["w"] + params["layers"][0]["b"])


def specs(**changed: Any) -> dict[str, SignatureSpec]:
    return {
        "predict": SignatureSpec(iris, IRIS, ("logits",), iris_rows(8)),
        "embed": SignatureSpec(hidden, IRIS, ("features",), iris_rows(8), **changed),
    }


def test_each_has_a_program_and_goldens_and_all_share_the_weights(tmp_path: Path) -> None:
    path = export_bundle(tmp_path / "m" / "1", params=iris_params(), signatures=specs())
    bundle = open_bundle(path)
    assert list(bundle.manifest.signatures) == ["predict", "embed"]
    assert {"programs/predict.jaxexport", "programs/embed.jaxexport", "golden/embed.npz"} <= set(
        bundle.manifest.files
    )
    assert list(bundle.manifest.tolerances["cpu"]) == ["predict/logits", "embed/features"]
    assert bundle.manifest.provenance["function"].endswith(":hidden")
    weights, x = bundle.load_weights(), iris_rows(3)
    got = bundle.exported("embed").call(weights, x)["features"]
    np.testing.assert_allclose(got, hidden(iris_params(), x["x"]), rtol=1e-5, atol=1e-5)
    assert verify(path).goldens == 4
    told = summary(bundle)
    assert "jaxport predict m --signature embed --input x=@x.npy" in told
    assert '.predict("m", {"x": x}, signature="embed")["features"]' in told


def test_another_program_beside_makes_another_version_to_compile(tmp_path: Path) -> None:
    both = open_bundle(export_bundle(tmp_path / "m" / "1", params=iris_params(), signatures=specs()))
    changed = specs() | {
        "embed": SignatureSpec(lambda p, x: hidden(p, x) * 2, IRIS, ("features",), iris_rows(8))
    }
    other = open_bundle(export_bundle(tmp_path / "m" / "2", params=iris_params(), signatures=changed))
    assert other.swap_key != both.swap_key


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("pad is given beside them; it belongs into a SignatureSpec", {"signatures": specs(), "pad": {}}),
        ("signatures: none are given", {"signatures": {}}),
        ("'a.b' is no name", {"signatures": {"a.b": specs()["embed"]}}),
        ("'embed' is a function; a SignatureSpec is needed", {"signatures": {"embed": hidden}}),
        ("fn, inputs, outputs, example is missing", {}),
        ("signature 'embed': pad: 'y' is no input", {"signatures": specs(pad={"y": 1})}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(said: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=said):
        export_bundle(tmp_path / "m" / "1", params=iris_params(), **arguments)
    assert list(tmp_path.rglob("*")) == []


def test_one_that_is_refused_refuses_the_bundle(tmp_path: Path) -> None:
    wrong = specs() | {"embed": SignatureSpec(lambda p, x: x - x.mean(0), IRIS, ("y",), iris_rows(8))}
    with pytest.raises(ExportRefused, match="signature 'embed': the rows of a batch depend on each other"):
        export_bundle(tmp_path / "m" / "1", params=iris_params(), signatures=wrong)
    assert list(tmp_path.rglob("*")) == []
