"""ONNX by jax2onnx, for onnxruntime: onnx/<signature>.onnx. The only module here that knows either.

The weights are initializers of the graph, by the bundle's names behind "weights/". A graph is made of the function as it is
written, so that onnxruntime finds the layers that it has kernels for; where that fails or answers wrong, of its primitives.
"""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import BundleError, ConvertError, ExportRefused, GoldenMismatch
from converters.formats import ProvenBundle, ProvenSignature, reference_tolerances
from converters.formats.answers import Answers, Case, Written, check_answers, library, one_line
from converters.manifest import Signature

FOLDER = "onnx"
WEIGHTS = "weights/"
OPSET = 23  # jax2onnx's own, and read by onnxruntime of 1.22 and later
# A file of protobuf ends at 2 GiB; weights of more than this go into a file beside it.
MOST_INSIDE = 1 << 30
Function = Callable[..., tuple[Any, ...]]


def write(folder: Path, proven: ProvenBundle) -> dict[str, Any]:
    """Writes one graph per signature, and runs it on the goldens.

    ExportRefused: jax2onnx has nothing for one of the function's operators, which is named. GoldenMismatch: onnxruntime
    answers otherwise.
    """
    (folder / FOLDER).mkdir()
    signatures = {name: _write(folder, one, proven.weights) for name, one in proven.signatures.items()}
    return {
        "opset": OPSET,
        "jax2onnx_version": _installed("jax2onnx"),
        "onnx_version": _installed("onnx"),
        "signatures": signatures,
    }


def covers(facts: Mapping[str, Any]) -> bool:
    """There are no options, and one graph takes any batch."""
    return bool(facts["signatures"])


def _write(folder: Path, one: ProvenSignature, weights: Mapping[str, np.ndarray]) -> dict[str, str]:
    from converters.formats.lowering import any_batch, input_specs
    from converters.formats.primitives import by_primitives
    from converters.program import weight_specs

    signature = one.signature
    any_batch("onnx", one)
    specs = [*weight_specs(weights).values(), *input_specs(signature).values()]
    written = by_name(one, list(weights))
    facts = {"file": f"{FOLDER}/{signature.name}.onnx"}
    failures: list[ConvertError] = []
    for made_of, function in (
        ("function", lambda: written),
        ("primitives", lambda: by_primitives(written, *specs)),
    ):
        facts["made_of"] = made_of
        try:
            _save(_graph(signature, function, specs, list(weights)), weights, folder / facts["file"])
            _check(folder, one, facts)
        except (ExportRefused, GoldenMismatch, BundleError) as error:
            failures.append(error)
        else:
            return facts
    raise failures[-1]


def by_name(one: ProvenSignature, weights: list[str]) -> Function:
    """The signature's function of arrays: the weights in the order of their names, then the inputs; outputs in theirs."""
    inputs = [t.name for t in one.signature.inputs]

    def function(*arrays: Any) -> tuple[Any, ...]:
        first, last = arrays[: len(weights)], arrays[len(weights) :]
        outputs = one.function(dict(zip(weights, first, strict=True)), dict(zip(inputs, last, strict=True)))
        return tuple(outputs[t.name] for t in one.signature.outputs)

    return function


def _graph(
    signature: Signature, function: Callable[[], Function], specs: list[Any], weights: list[str]
) -> Any:
    """The graph with the weights as inputs; ExportRefused in one line for whatever jax2onnx raises."""
    import jax

    try:
        with _quiet():
            return library("jax2onnx").to_onnx(
                function(),
                inputs=specs,
                model_name=signature.name,
                opset=OPSET,
                input_names=[*(WEIGHTS + name for name in weights), *(t.name for t in signature.inputs)],
                output_names=[t.name for t in signature.outputs],
                enable_double_precision=bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
            )
    # jax2onnx traces the function with its own replacements of JAX's: either may raise anything.
    except Exception as error:
        version = _installed("jax2onnx")
        named = re.search(r"primitive '([^']+)'", str(error))
        if named:
            what = f"jax2onnx {version} has nothing for the operator {named[1]!r} of {signature.name!r}"
        else:
            what = f"jax2onnx {version} cannot convert {signature.name!r}: {one_line(error)}"
        raise ExportRefused(
            f"onnx: {what}; leave this format out, or write the function without it"
        ) from error


def _save(graph: Any, weights: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes the graph with the weights in it, or beside it where they are many."""
    onnx = library("onnx")
    taken = [value for value in graph.graph.input if value.name.startswith(WEIGHTS)]
    for value in taken:
        graph.graph.input.remove(value)
        weight = weights[value.name.removeprefix(WEIGHTS)]
        graph.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(weight), value.name))
    beside = path.with_name(f"{path.name}.data")
    beside.unlink(missing_ok=True)  # of an attempt before this one: it would be added to
    big = sum(w.nbytes for w in weights.values()) > MOST_INSIDE
    onnx.save_model(graph, str(path), save_as_external_data=big, location=beside.name)


def _check(folder: Path, one: ProvenSignature, facts: Mapping[str, str]) -> None:
    from converters.formats import onnx as here

    written = Written(folder, {"signatures": {one.signature.name: facts}}, dict)
    case = Case(one.signature, one.proof.goldens, reference_tolerances(one.proof.tolerances))
    check_answers("onnx", here, written, [case])


def runner(written: Written, signature: Signature) -> Answers:
    """The signature as onnxruntime answers it on this machine's CPU."""
    onnxruntime = library("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of every node that it does not fold
    path = written.at(written.facts["signatures"][signature.name]["file"])
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        used = {value.name for value in session.get_inputs()}
        answers = session.run(names, {name: value for name, value in inputs.items() if name in used})
        return dict(zip(names, map(np.asarray, answers), strict=True))

    return run


def runtime() -> str:
    return f"onnxruntime {_installed('onnxruntime')}"


def _installed(name: str) -> str:
    from importlib.metadata import version

    return version(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """onnx_ir tells of every value without a type, and jax2onnx of what it patches."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "jax2onnx")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
