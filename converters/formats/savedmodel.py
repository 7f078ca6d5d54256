"""A SavedModel, as TensorFlow Serving reads it: savedmodel/1/. The only module here that knows TensorFlow.

The program is StableHLO inside one operation (XlaCallModule), the weights are variables, the batch is any.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import BadSpec, ExportRefused
from converters.formats import ProvenBundle, ProvenSignature
from converters.formats.answers import Answers, Written, library, one_line
from converters.manifest import Signature

PLACE = "savedmodel/1"
DEFAULT = "serving_default"
# The newest that TensorFlow 2.21 reads; JAX's own is newer. StableHLO keeps reading what is older.
STABLEHLO_VERSION = "1.13.0"


def write(folder: Path, proven: ProvenBundle, platforms: Sequence[str] = ("cpu",)) -> dict[str, Any]:
    """Writes savedmodel/1. Signatures are named as the bundle's, and the first is `serving_default`.

    BadSpec: platforms without cpu, on which it is proven. ExportRefused: TensorFlow cannot take the program.
    """
    if "cpu" not in platforms:
        raise BadSpec(
            f"savedmodel: platforms {', '.join(platforms) or 'none'}; cpu is needed, on which it is proven"
        )
    tf = tensorflow()
    model = tf.Module()
    try:
        # Lists and not the dict itself: a name may have dots, which are no attributes.
        variables = {n: tf.Variable(w, trainable=False, name=_plain(n)) for n, w in proven.weights.items()}
        model.weights = list(variables.values())
        signatures = {}
        for name, one in proven.signatures.items():
            signatures[name] = _concrete(one, variables, proven.weights, platforms)
        model.functions = list(signatures.values())
        first = next(iter(signatures.values()))
        named = {DEFAULT: first} if len(signatures) == 1 else {DEFAULT: first, **signatures}
        with _quiet():
            tf.saved_model.save(model, str(folder / PLACE), signatures=named)
    except (TypeError, ValueError, NotImplementedError, tf.errors.OpError) as error:
        raise ExportRefused(
            f"savedmodel: TensorFlow {tf.__version__} cannot take this model: {one_line(error)}"
        ) from error
    names = list(proven.signatures)
    return {
        "path": PLACE,
        "platforms": list(platforms),
        "stablehlo_version": STABLEHLO_VERSION,
        "tensorflow_version": tf.__version__,
        "signatures": {DEFAULT: names[0]} | ({n: n for n in names} if len(names) > 1 else {}),
    }


def covers(facts: Mapping[str, Any], platforms: Sequence[str] = ("cpu",)) -> bool:
    """Whether what was written is lowered for all of `platforms`."""
    return set(platforms) <= set(facts["platforms"])


def _concrete(
    one: ProvenSignature,
    variables: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    platforms: Sequence[str],
) -> Any:
    """The signature as a function of TensorFlow, traced for any batch."""
    from converters.formats.lowering import any_batch, argument_names, lower, output_names, portable

    tf, xla = tensorflow(), library("tensorflow.compiler.tf2xla.python.xla")
    any_batch("savedmodel", one)
    exported = lower(one, weights, platforms)
    most = xla.call_module_maximum_supported_version()
    if exported.calling_convention_version > most:
        raise ExportRefused(
            f"savedmodel: JAX writes calling convention {exported.calling_convention_version}, TensorFlow "
            f"{tf.__version__} reads up to {most}; use a newer TensorFlow, or export with --calling-convention {most}"
        )
    module = portable("savedmodel", exported, STABLEHLO_VERSION)
    takes, inputs = argument_names(exported)
    gives = output_names(exported)

    def call(**arguments: Any) -> dict[str, Any]:
        results = xla.call_module(
            (*(variables[name] for name in takes), *(arguments[name] for name in inputs)),
            version=exported.calling_convention_version,
            module=module,
            Tout=[_dtype(a.dtype) for a in exported.out_avals],
            Sout=[_shape(a.shape) for a in exported.out_avals],
            platforms=[p.upper() for p in exported.platforms],
        )
        return dict(zip(gives, results, strict=True))

    specs = {
        t.name: tf.TensorSpec(_shape(t.shape), _dtype(np.dtype(t.dtype)), t.name)
        for t in one.signature.inputs
    }
    return tf.function(call, autograph=False).get_concrete_function(**specs)


def runner(written: Written, signature: Signature) -> Answers:
    """The signature as TensorFlow answers it."""
    tf = tensorflow()
    with _quiet():
        model = tf.saved_model.load(str(written.at(written.facts["path"])))
    keys = {name: key for key, name in written.facts["signatures"].items()}
    function = model.signatures[keys[signature.name]]

    def run(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        answers = function(**{name: tf.constant(value) for name, value in inputs.items()})
        # The model is kept as long as the function: its variables live with it.
        return {name: value.numpy() for name, value in answers.items() if model}

    return run


def runtime() -> str:
    return f"tensorflow {tensorflow().__version__}"


def serving_command(model: str, bundle: Path) -> str:
    """What starts TensorFlow Serving on the bundle's SavedModel: gRPC on 8500, REST on 8501."""
    base = (bundle / PLACE).parent.absolute()
    return f"tensorflow_model_server --port=8500 --rest_api_port=8501 --model_name={model} --model_base_path={base}"


def tensorflow() -> Any:
    # Read by TensorFlow's libraries as they load: without it they tell of every kernel they have.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return library("tensorflow")


class _quiet:
    """TensorFlow says through logging where it saved what."""

    def __enter__(self) -> None:
        self.logger = logging.getLogger("tensorflow")
        self.level = self.logger.level
        self.logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        self.logger.setLevel(self.level)


def _plain(name: str) -> str:
    """A weight's name as TensorFlow allows one."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.-/") else "_" for c in name)
    return plain if plain[:1].isalnum() else f"w{plain}"


def _shape(sizes: Sequence[Any]) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in sizes]


def _dtype(dtype: Any) -> Any:
    return tensorflow().as_dtype(np.dtype(dtype))
