"""Gradients of a bundle's programs: how JAX differentiates one, and what a bundle keeps to check them by.

A program is serialized with the programs of its gradients up to an order, since nobody who loads it can trace its source.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import numpy as np

from converters.golden import Golden
from converters.manifest import TensorInfo

Arrays = Mapping[str, Any]
Function = Callable[[Any, Any], dict[str, Any]]
# Elements that are kept of each gradient: those of all weights would be as large as the weights.
SAMPLES = 256
# What a gradient is taken of; in tolerances "<signature>/vjp/weights".
GROUPS = ("weights", "inputs")


def is_floating(dtype: Any) -> bool:
    """Whether JAX differentiates by arrays of this dtype."""
    return jax.numpy.issubdtype(np.dtype(dtype), np.inexact)


def differentiable(
    exported: jax.export.Exported,
    order: int,
    refusal: Callable[[], Exception] = AssertionError,
    within: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[..., Any]:
    """`exported.call`, which JAX differentiates backwards `order` times; it raises `refusal()` at the next.

    within: around what JAX does when it goes backwards.
    """

    @jax.custom_vjp
    def call(*args: Any) -> Any:
        return exported.call(*args)

    def forward(*args: Any) -> tuple[Any, Any]:
        if order == 0:
            raise refusal()
        return exported.call(*args), args

    def backward(args: Any, cotangents: Any) -> Any:
        pullback = differentiable(exported.vjp(), order - 1, refusal, within)
        flat, tree = jax.tree.flatten(args)
        given = [_cotangent(each) for each in jax.tree.leaves(cotangents)]
        with within():
            return jax.tree.unflatten(tree, pullback(*flat, *given))

    call.defvjp(forward, backward)
    return call


def _cotangent(value: Any) -> Any:
    """Of an output without gradient JAX passes zeros, and its own pullback asks for those of float0."""
    return value if is_floating(value.dtype) else np.zeros(value.shape, jax.dtypes.float0)


@dataclass(frozen=True)
class Gradients:
    """By name, of the floating weights and inputs; arrays of their own dtype and shape."""

    weights: Arrays
    inputs: Arrays


def gradients(function: Function) -> Callable[[Arrays, Arrays, Arrays], Gradients]:
    """A compiled (weights, inputs, cotangents by output) -> Gradients of the function of two dicts."""

    @jax.jit
    def pull(weights: Arrays, inputs: Arrays, cotangents: Arrays) -> tuple[Any, Any]:
        def outputs(by_weights: Arrays, by_inputs: Arrays) -> dict[str, Any]:
            found = function({**weights, **by_weights}, {**inputs, **by_inputs})
            return {name: found[name] for name in cotangents}

        _, back = jax.vjp(outputs, _floating(weights), _floating(inputs))
        return back(dict(cotangents))

    return lambda weights, inputs, cotangents: Gradients(*pull(dict(weights), dict(inputs), dict(cotangents)))


def _floating(arrays: Arrays) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if is_floating(array.dtype)}


def cotangents_of(outputs: Sequence[TensorInfo], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the outputs' gradients are weighed with: normal numbers, the same for the same shapes; 1 of a scalar."""
    generator = np.random.default_rng(0)
    found = {}
    for tensor in outputs:
        if is_floating(tensor.dtype):
            shape = values[tensor.name].shape
            numbers = generator.normal(size=shape) if shape else np.ones(())
            found[tensor.name] = np.asarray(numbers).astype(np.dtype(tensor.dtype))
    return found


def gradient_golden(inputs: Arrays, cotangents: Arrays, found: Gradients, length: int = 0) -> Golden:
    """What a bundle keeps: inputs and cotangents whole, of each gradient elements from all over it."""
    given = {f"inputs/{name}": array for name, array in inputs.items()}
    given |= {f"cotangents/{name}": array for name, array in cotangents.items()}
    rows = len(next(iter(inputs.values())))
    return Golden(rows, given, sampled(found), length)


def sampled(found: Gradients) -> dict[str, np.ndarray]:
    """Some elements of each gradient, by "weights/<name>" and "inputs/<name>"."""
    return {
        f"{group}/{name}": _sample(np.asarray(array))
        for group in GROUPS
        for name, array in getattr(found, group).items()
    }


def _sample(array: np.ndarray) -> np.ndarray:
    flat = array.reshape(-1)
    if flat.size <= SAMPLES:
        return flat
    return flat[np.linspace(0, flat.size - 1, SAMPLES).astype(int)]


def rerun(function: Function, weights: Arrays, golden: Golden) -> dict[str, np.ndarray]:
    """The sampled gradients of `function` for what the golden was taken of."""
    return sampled(gradients(function)(weights, part(golden, "inputs"), part(golden, "cotangents")))


def part(golden: Golden, kind: str) -> dict[str, np.ndarray]:
    """The inputs or the cotangents of a gradient's golden, by name."""
    prefix = f"{kind}/"
    return {name[len(prefix) :]: array for name, array in golden.inputs.items() if name.startswith(prefix)}
