"""The function that a bundle was made of, where its manifest names one that can be imported here.

It is believed once it has given the goldens' answers: sources change after an export.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from converters.bundle import Bundle
from converters.compare.inputs import goldens_of
from converters.errors import ConvertError
from converters.export import SIGNATURE
from converters.fewer_bits import restored
from converters.program import Program, name_outputs
from converters.run import to_host
from converters.spec import SignatureSpec
from converters.weights import flatten_params


class NoSource(Exception):
    """Why there is none, for a table."""


def find_source(bundle: Bundle, signature: str, weights: Any, platform: str) -> tuple[Program, str]:
    """(the function of weights and inputs by name, what to call it). weights: on the device.

    Importing runs the module that the manifest names. Raises NoSource.
    """
    provenance, reasons = bundle.manifest.provenance, []
    for candidate, named in _candidates(provenance, bundle, signature):
        program = _on_stored(candidate, bundle)
        try:
            _check(program, bundle, signature, weights, platform)
        except Exception as error:  # it is somebody's function, and may have become any other
            reasons.append(f"{named}: {_first_line(error)}")
        else:
            return program, named
    raise NoSource(reasons[-1] if reasons else "the manifest names no function that could be imported")


def _on_stored(program: Program, bundle: Bundle) -> Program:
    """The function on weights as the bundle has them, which may be in fewer bits."""
    stored = bundle.manifest.stored_weights
    if stored is None:
        return program
    return lambda weights, inputs: program(restored(weights, stored), inputs)


def _candidates(
    provenance: Mapping[str, Any], bundle: Bundle, signature: str
) -> Iterator[tuple[Program, str]]:
    if provenance.get("source") == "run":
        yield _of_run(provenance, signature), f"preset {provenance.get('preset')}"
        return
    path = str(provenance.get("function", ""))
    if path.count(":") != 1 or "<" in path or "," in path:
        raise NoSource(f"the function {path or 'of this bundle'} has no name that could be imported")
    if "params" in provenance:  # of `jaxport export --fn`
        function, rebuilds = _declared(path, signature)
    else:
        function, rebuilds = _imported(path), (dict, _nested)
    outputs = tuple(t.name for t in bundle.signature(signature).outputs)
    for rebuild in rebuilds:

        def program(weights: Any, inputs: Any, rebuild: Callable[[Any], Any] = rebuild) -> dict[str, Any]:
            return name_outputs(function(rebuild(weights), **inputs), outputs)

        yield program, path


def _of_run(provenance: Mapping[str, Any], signature: str) -> Program:
    try:
        from converters.from_run import source_of_run
    except ModuleNotFoundError as error:
        raise NoSource(f"{error.name} is not installed here, and its preset needs it") from None
    try:
        return source_of_run(provenance, signature)
    except Exception as error:
        raise NoSource(_first_line(error)) from error


def _declared(path: str, signature: str) -> tuple[Callable[..., Any], Sequence[Callable[[Any], Any]]]:
    """(the function of an ExportSpec, what may make its params of weights by name)."""
    from converters.from_function import load_spec

    try:
        spec = load_spec(path)
        several = (
            {SIGNATURE: spec.signatures} if isinstance(spec.signatures, SignatureSpec) else spec.signatures
        )
        function = several[signature].fn
        if spec.params is None:
            return function, (dict, _nested)
        template = jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf,
            spec.params,
        )
        return function, (flatten_params(template).rebuild,)
    except Exception as error:  # the module is somebody's, and may have become any other
        raise NoSource(f"{path}: {_first_line(error)}") from error


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as for a preset of one's own: the model lies beside its user
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may do anything when it is imported
        raise NoSource(f"{path} cannot be imported here: {_first_line(error)}") from error
    return found


def _check(program: Program, bundle: Bundle, signature: str, weights: Any, platform: str) -> None:
    jitted = jax.jit(lambda w, i: program(w, i))
    for golden in goldens_of(bundle, signature):
        outputs = to_host(jitted(weights, dict(golden.inputs)))
        bundle.check_golden(signature, golden, outputs, platform)


def _nested(flat: Mapping[str, Any]) -> Any:
    """{"layers.0.w": x} as {"layers": [{"w": x}]}: what most parameters were before they were weights."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = value
    return _lists(tree)


def _lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    inner = {key: _lists(value) for key, value in tree.items()}
    if inner and set(inner) == {str(at) for at in range(len(inner))}:
        return [inner[str(at)] for at in range(len(inner))]
    return inner


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    line = text.splitlines()[0][:200] if text else ""
    return line if isinstance(error, ConvertError) or not line else f"{type(error).__name__}: {line}"
