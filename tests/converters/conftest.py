"""Small functions as bundles: what is tested is the bundle, so training has no part in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from converters import TensorSpec, export_bundle

IRIS = {"x": TensorSpec("float32", "b, 4")}


def iris(params: Any, x: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(x @ params["layers"][0]["w"] + params["layers"][0]["b"])
    return hidden @ params["layers"][1]["w"] + params["layers"][1]["b"]


def iris_params(seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    shapes = ((4, 64), (64, 3))
    layers = [
        {"w": generator.normal(size=shape).astype(np.float32), "b": np.zeros(shape[1], np.float32)}
        for shape in shapes
    ]
    return {"layers": layers}


def iris_rows(rows: int, seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)}


def export_iris(path: Path, fn: Callable[..., Any] = iris, **changes: Any) -> Path:
    arguments: dict[str, Any] = {"inputs": IRIS, "outputs": ("logits",), "example": iris_rows(8)}
    return export_bundle(path, fn, changes.pop("params", iris_params()), **(arguments | changes))


@pytest.fixture(scope="session")
def iris_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/iris/1, to be read only."""
    return export_iris(tmp_path_factory.mktemp("models") / "iris" / "1")
