"""Parameters as weights: any pytree becomes a flat dict of string names, and back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from converters.errors import BadSpec
from converters.spec import check_dtype


@dataclass(frozen=True)
class Weights:
    """Parameters by name. params: as they were given. rebuild: makes that tree of any dict with the same names."""

    params: Any
    arrays: Mapping[str, np.ndarray]
    rebuild: Callable[[Mapping[str, Any]], Any]


def flatten_params(params: Any) -> Weights:
    """The parameters by name, on the host and in sorted order.

    Names are the path's keys joined by dots: {"layer": [{"w": ...}]} gives "layer.0.w". BadSpec: two leaves with one
    name, or a leaf that is no array.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "params" for path, _ in leaves]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise BadSpec(f"params: two leaves are called {twice[0]!r}; rename one of the keys")
    arrays = {name: _array(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}

    def rebuild(flat: Mapping[str, Any]) -> Any:
        return jax.tree_util.tree_unflatten(treedef, [flat[name] for name in names])

    return Weights(params, dict(sorted(arrays.items())), rebuild)


def _array(name: str, leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise BadSpec(f"params: {name!r} is a typed PRNG key; pass jax.random.key_data(key) instead")
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind in "OUSMm":
        raise BadSpec(f"params: {name!r} is a {type(leaf).__name__}; an array is needed")
    if isinstance(leaf, float | int | complex) and not isinstance(leaf, np.generic):
        # JAX gives a Python number the dtype of what it meets, which an argument of a program cannot have.
        raise BadSpec(
            f"params: {name!r} is the Python number {leaf!r}; make it an array, as jnp.float32({leaf!r})"
        )
    check_dtype(f"params: {name!r}", array.dtype.name)
    return np.ascontiguousarray(array).reshape(array.shape)
