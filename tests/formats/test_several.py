"""Several signatures of the same params: each by its name, the first also as serving_default."""

from pathlib import Path
from typing import Any

import numpy as np

from converters import open_bundle
from converters.verify import verify


def test_each_signature_is_there_by_name(tmp_path: Path) -> None:
    from converters import SignatureSpec, TensorSpec, export_bundle

    params = {"w": np.eye(4, dtype=np.float32) * 2, "b": np.arange(4, dtype=np.float32)}
    rows = {"x": np.random.default_rng(5).normal(size=(8, 4)).astype(np.float32)}
    x = {"x": TensorSpec("float32", "b, 4")}

    def predict(params: Any, x: Any) -> Any:
        return x @ params["w"] + params["b"]

    def shift(params: Any, x: Any) -> Any:
        return x - params["b"]

    path = export_bundle(
        tmp_path / "m" / "1",
        signatures={
            "predict": SignatureSpec(predict, x, ("y",), rows),
            "shift": SignatureSpec(shift, x, ("z",), rows),
        },
        params=params,
        platforms=("cpu",),
        formats={"savedmodel": {}, "stablehlo": {"batches": (1, 4)}, "onnx": {}},
    )
    facts = open_bundle(path).manifest.formats
    assert facts["savedmodel"]["signatures"] == {
        "serving_default": "predict",
        "predict": "predict",
        "shift": "shift",
    }
    shift = facts["stablehlo"]["signatures"]["shift"]
    assert shift["weights"] == ["b"]
    assert shift["files"] == {batch: f"stablehlo/shift.b{batch}.mlirbc" for batch in ("1", "4")}
    assert set(facts["onnx"]["signatures"]) == {"predict", "shift"}
    assert [(one.name, one.goldens) for one in verify(path).formats] == [
        ("savedmodel", 4), ("stablehlo", 4), ("onnx", 4),
    ]  # fmt: skip
