"""Parameters out of an Orbax checkpoint that somebody else wrote, and as the function that takes them has them.

A checkpoint has no classes: what was a module's state is dicts, lists and arrays, and the number of a layer has become a
string. `fit` puts the arrays back where the function expects them, by name.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from converters.errors import BadSpec
from converters.weights import is_array, named_leaves

LISTED = 5


def read_checkpoint(path: Path) -> Any:
    """The tree as it was saved, of host arrays. Written by Orbax's v1 `save`, StandardCheckpointer, PyTreeCheckpointer,
    or as a step of a CheckpointManager. BadSpec: there is no checkpoint, or it cannot be read.
    """
    from orbax.checkpoint import v1 as ocp

    if not path.is_dir():
        raise BadSpec(f"--params {path}: no such folder; an Orbax checkpoint is needed")
    where = str(path.absolute())
    try:
        if not ocp.is_orbax_checkpoint(where):
            raise BadSpec(f"--params {path}: is no Orbax checkpoint{_steps_below(path)}")
        found = ocp.metadata(where).metadata
        # Arrays of the host: devices that it was saved from need not be here.
        wanted = jax.tree.map(
            lambda leaf: np.empty(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf, found
        )
        return ocp.load(where, wanted)
    except BadSpec:
        raise
    # Orbax and TensorStore have a dozen types for a checkpoint that is damaged.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadSpec(f"--params {path}: cannot be read ({reason})") from error


def fit(saved: Any, expected: Any, source: str) -> Any:
    """The saved arrays in the tree that `expected` is, whose leaves are arrays or ShapeDtypeStructs.

    Raises BadSpec naming the first leaf that is missing, too many, or of another shape or dtype.
    """
    leaves, treedef = named_leaves(expected)
    free = {name for name, leaf in leaves if _is_slot(leaf)}
    arrays = _by_expected_name(saved, free)
    missing, extra = sorted(free - arrays.keys()), sorted(arrays.keys() - free)
    if missing:
        beside = f"; it holds {_listed(extra)} instead" if extra else ""
        raise BadSpec(f"{source}: lacks {_listed(missing)}, which the function's params have{beside}")
    if extra:
        raise BadSpec(
            f"{source}: holds {_listed(extra)}, which the function's params have not; choose what it takes with restore="
        )
    filled = [_checked(name, arrays[name], leaf, source) if name in free else leaf for name, leaf in leaves]
    return jax.tree.unflatten(treedef, filled)


def _by_expected_name(saved: Any, expected: set[str]) -> dict[str, Any]:
    """A box around an array may have been saved as a dict with one entry."""
    arrays = {}
    for name, leaf in named_leaves(saved)[0]:
        unboxed = name.removesuffix(".value")
        arrays[unboxed if name not in expected and unboxed in expected else name] = leaf
    return arrays


def _is_slot(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _checked(name: str, array: Any, expected: Any, source: str) -> Any:
    if jax.numpy.issubdtype(expected.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(array) if _is_key(array) else jax.numpy.asarray(array)
        return jax.random.wrap_key_data(data, impl=_impl(expected))
    has, needs = np.asarray(array), f"{expected.dtype}{list(expected.shape)}"
    if f"{has.dtype}{list(has.shape)}" != needs:
        raise BadSpec(
            f"{source}: {name!r} is {has.dtype}{list(has.shape)}, the function's params have {needs}"
        )
    return has


def _is_key(array: Any) -> bool:
    return isinstance(array, jax.Array) and jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)


def _impl(expected: Any) -> Any:
    return jax.random.key_impl(expected) if isinstance(expected, jax.Array) else None


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(repr(name) for name in names[:LISTED]) + more


def _steps_below(path: Path) -> str:
    steps = sorted(int(entry.name) for entry in path.iterdir() if entry.name.isdecimal() and entry.is_dir())
    return f"; name one of its steps: {', '.join(map(str, steps[-LISTED:]))}" if steps else ""
