"""The SavedModel beside the other ways, in the real TensorFlow: what it answers, and that it is measured as they are."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from converters import TensorSpec, export_bundle
from converters.compare.figures import Asked
from converters.compare.side_by_side import compare

ROWS = {"x": np.random.default_rng(6).normal(size=(8, 4)).astype(np.float32)}
PARAMS = {"w": np.random.default_rng(7).normal(size=(4, 4)).astype(np.float32)}


def squashed(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x @ params["w"])


def test_the_savedmodel_is_one_of_the_ways(tmp_path: Path) -> None:
    path = export_bundle(
        tmp_path / "squashed" / "1",
        squashed,
        PARAMS,
        inputs={"x": TensorSpec("float32", "b, 4")},
        outputs=("y",),
        example=ROWS,
        platforms=("cpu",),
        formats=("savedmodel",),
    )
    found = compare(path, Asked(batches=(1, 4), seconds=0.05, rounds=2))
    assert [way.name for way in found.ran] == ["jit", "AOT", "export", "eager", "SavedModel"]
    saved = found.ran[-1]
    assert "TensorFlow 2." in saved.what and saved.load_s is not None and saved.load_s > 0
    assert saved.mismatch is None and saved.max_difference < 1e-5 and 0 <= saved.share_of_allowed <= 1
    assert [cell.batch for cell in saved.cells] == [1, 4]
    for cell in saved.cells:
        assert cell.calls >= 2 and 0 < cell.low_ms <= cell.median_ms <= cell.high_ms
