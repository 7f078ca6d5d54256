"""Parameters as weights: any pytree becomes a flat dict of string names, and back.

Whatever library made them, parameters are a pytree that it has registered with JAX: nothing here knows one by name.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey, keystr

from converters.errors import BadSpec
from converters.spec import check_dtype


@dataclass(frozen=True)
class Weights:
    """Parameters by name. params: as they were given. rebuild: makes that tree of any dict with the same names.

    What is no array, as the activation of a module, is no weight: `rebuild` puts it back as it was given.
    """

    params: Any
    arrays: Mapping[str, np.ndarray]
    rebuild: Callable[[Mapping[str, Any]], Any]


def flatten_params(params: Any) -> Weights:
    """The parameters by name, on the host and in sorted order.

    Names are the path's keys joined by dots: {"layer": [{"w": ...}]} gives "layer.0.w". A box around a single array, as
    libraries have for what they know of it, gives no name of its own: "kernel" and not "kernel.value". A typed PRNG key
    is stored as its data. BadSpec: two leaves with one name, or a leaf that is neither an array nor, below an
    attribute, a setting of the object that has it.
    """
    leaves, treedef = _apart(params)
    names = _names([path for path, _ in leaves])
    arrays, rest = {}, {}
    for name, (path, leaf) in zip(names, leaves, strict=True):
        if is_array(leaf) or not any(isinstance(key, GetAttrKey) for key in path):
            arrays[name] = _array(name, leaf)
        else:
            rest[name] = leaf
    keys = {
        name: jax.random.key_impl(leaf)
        for name, (_, leaf) in zip(names, leaves, strict=True)
        if _is_key(leaf)
    }

    def rebuild(flat: Mapping[str, Any]) -> Any:
        return jax.tree_util.tree_unflatten(treedef, [leaf_of(flat, name) for name in names])

    def leaf_of(flat: Mapping[str, Any], name: str) -> Any:
        if name in rest:
            return rest[name]
        return jax.random.wrap_key_data(flat[name], impl=keys[name]) if name in keys else flat[name]

    return Weights(params, dict(sorted(arrays.items())), rebuild)


def named_leaves(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """((name, leaf) in the tree's order, the tree without them), with names as `flatten_params` gives them. BadSpec."""
    leaves, treedef = _apart(tree)
    return list(zip(_names([path for path, _ in leaves]), (leaf for _, leaf in leaves), strict=True)), treedef


def _apart(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    try:
        return jax.tree_util.tree_flatten_with_path(tree)
    except (ValueError, TypeError) as error:
        why = error.__cause__ or error
        raise BadSpec(
            f"params: JAX cannot take this tree apart ({why}); a dict needs keys of one kind"
        ) from error


def is_array(leaf: Any) -> bool:
    """Whether a leaf of the parameters has a dtype and a shape, so that it is an argument of a program."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic) or hasattr(leaf, "__array__")


def _names(paths: Sequence[Sequence[Any]]) -> list[str]:
    beside = Counter(tuple(map(str, path[:-1])) for path in paths)
    names = []
    for path in paths:
        boxed = len(path) > 1 and path[-1] == GetAttrKey("value") and beside[tuple(map(str, path[:-1]))] == 1
        names.append(keystr(tuple(path[:-1] if boxed else path), simple=True, separator=".") or "params")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadSpec(f"params: two leaves are called {min(twice)!r}; rename one of the keys")
    return names


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _array(name: str, leaf: Any) -> np.ndarray:
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind in "OUSMm":
        raise BadSpec(
            f"params: {name!r} is a {type(leaf).__name__}; an array is needed, or a class that is registered as a pytree"
        )
    if isinstance(leaf, float | int | complex) and not isinstance(leaf, np.generic):
        # JAX gives a Python number the dtype of what it meets, which an argument of a program cannot have.
        raise BadSpec(
            f"params: {name!r} is the Python number {leaf!r}; make it an array, as jnp.float32({leaf!r})"
        )
    check_dtype(f"params: {name!r}", array.dtype.name)
    if not array.dtype.isnative:
        raise BadSpec(
            f"params: {name!r} is in another byte order than this machine's ({array.dtype.str}), which JAX does not take; "
            f"pass it as .astype({array.dtype.name!r})"
        )
    return np.ascontiguousarray(array).reshape(array.shape)
