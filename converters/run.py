"""Running a bundle's program in this process, without a server: one executable per shape.

bundle = open_bundle("models/iris/1")
run = compiled_runner(bundle.exported(), bundle.load_weights())
run({"x": x})["logits"]
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.export
import numpy as np

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def compiled_runner(exported: jax.export.Exported, weights: Mapping[str, Any]) -> Run:
    """A function from inputs to outputs that compiles the program for each shape once."""
    executables: dict[Any, Any] = {}

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        shapes = tuple(sorted((name, array.shape) for name, array in inputs.items()))
        if shapes not in executables:
            specs = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in inputs.items()}
            executables[shapes] = jax.jit(exported.call).lower(dict(weights), specs).compile()
        return to_host(executables[shapes](weights, dict(inputs)))

    return run


def to_host(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in outputs.items()}
