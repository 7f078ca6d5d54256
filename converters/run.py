"""Running a bundle's program in this process, without a server: one executable per shape.

bundle = open_bundle("models/iris/1")
run = program_runner(bundle.programs(), bundle.load_weights(), bundle.signature().pad)
run({"x": x})["logits"]
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.export
import numpy as np

from converters.manifest import ANY_BATCH

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


def program_runner(
    programs: Mapping[int, jax.export.Exported], weights: Mapping[str, Any], pad: Mapping[str, float]
) -> Run:
    """As compiled_runner, of a signature that has one program for any batch, or one for each of a few."""
    runs = {batch: compiled_runner(exported, weights) for batch, exported in programs.items()}
    return runs[ANY_BATCH] if ANY_BATCH in runs else in_batches(runs, pad)


def calling(calls: Mapping[int, Callable[..., Any]], pad: Mapping[str, float]) -> Callable[..., Any]:
    """(weights, inputs) -> outputs, by name, for JAX to trace and compile; of several such, by the batch each takes,
    whichever hold the rows.
    """
    if ANY_BATCH in calls:
        return calls[ANY_BATCH]

    def call(weights: Any, inputs: Any) -> Any:
        runs = {batch: partial(one, weights) for batch, one in calls.items()}
        return in_batches(runs, pad)(inputs)

    return call


def in_batches(runs: Mapping[int, Callable[..., Any]], pad: Mapping[str, float]) -> Callable[..., Any]:
    """Any number of rows through functions that take one number each, as a server has them: padded to the smallest that
    holds them, and split where none does.

    runs: by rows. pad: what fills up, by input, 0 where it has none. Takes numpy's arrays, or those that JAX traces.
    """
    sizes = sorted(runs)

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        rows, parts = len(next(iter(inputs.values()))), []
        for start in range(0, rows, sizes[-1]):
            count = min(rows - start, sizes[-1])
            size = next(size for size in sizes if size >= count)
            piece = {
                name: _filled_up(array[start : start + count], size, pad.get(name, 0))
                for name, array in inputs.items()
            }
            parts.append({name: value[:count] for name, value in runs[size](piece).items()})
        if len(parts) == 1:
            return parts[0]
        return {
            name: value.__array_namespace__().concat([part[name] for part in parts])
            for name, value in parts[0].items()
        }

    return run


def _filled_up(array: Any, rows: int, value: float) -> Any:
    if len(array) == rows:
        return array
    xp = array.__array_namespace__()
    return xp.concat([array, xp.full((rows - len(array), *array.shape[1:]), value, dtype=array.dtype)])


def to_host(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in outputs.items()}
