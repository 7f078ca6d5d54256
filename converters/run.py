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


class Runner:
    """A function from inputs to outputs that compiles the program for each shape once."""

    def __init__(self, exported: jax.export.Exported, weights: Mapping[str, Any]) -> None:
        self._exported, self._weights = exported, weights
        self._executables: dict[Any, Any] = {}

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return to_host(self._compiled(inputs)(self._weights, dict(inputs)))

    def working_bytes(self, inputs: Mapping[str, np.ndarray]) -> int:
        """What a run at these shapes takes of the device's memory beside weights and inputs; 0 where XLA does not say."""
        analysis = self._compiled(inputs).memory_analysis()
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes if analysis else 0

    def _compiled(self, inputs: Mapping[str, np.ndarray]) -> Any:
        shapes = tuple(sorted((name, array.shape) for name, array in inputs.items()))
        if shapes not in self._executables:
            specs = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in inputs.items()}
            compiled = jax.jit(self._exported.call).lower(dict(self._weights), specs).compile()
            self._executables[shapes] = compiled
        return self._executables[shapes]


def compiled_runner(exported: jax.export.Exported, weights: Mapping[str, Any]) -> Runner:
    """The program on these weights, which may lie on the device."""
    return Runner(exported, weights)


def to_host(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in outputs.items()}
