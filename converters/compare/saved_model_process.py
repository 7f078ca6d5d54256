"""The process of saved_model.py. It knows TensorFlow and numpy; a line of JSON in, one out."""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.golden import Golden, pack_goldens, unpack_goldens


def main(folder: str, signature: str, inputs: str) -> None:
    """Loads, says so, and answers until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no reply
    try:
        start = time.perf_counter()
        function, found = _load(folder, signature)
        _say(replies, found | {"load_s": time.perf_counter() - start - found.pop("import_s")})
        given = unpack_goldens(Path(inputs).read_bytes(), inputs)
        for line in sys.stdin:
            _say(replies, _serve(function, given, json.loads(line)))
    except ModuleNotFoundError as error:
        _say(
            replies,
            {"error": f"{error.name} is not installed here; --tensorflow-python names one that has it"},
        )
    except Exception as error:  # TensorFlow has as many kinds as it has layers; whoever asked prints a line
        text = " ".join(str(error).split())[:200]
        _say(replies, {"error": f"{type(error).__name__}: {text}"})


def _load(folder: str, signature: str) -> tuple[Any, dict[str, Any]]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    start = time.perf_counter()
    import tensorflow as tf  # pyright: ignore[reportMissingImports]

    import_s = time.perf_counter() - start
    loaded = tf.saved_model.load(folder)
    names = list(loaded.signatures)
    name = next((n for n in (signature, "serving_default") if n in names), None)
    if name is None:
        raise ValueError(f"it has no signature {signature!r}; it has {', '.join(sorted(names))}")
    function = loaded.signatures[name]

    def run(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = function(**{key: tf.constant(array) for key, array in arrays.items()})
        return {key: value.numpy() for key, value in outputs.items()}

    run.loaded = loaded  # type: ignore[attr-defined]  # its variables live as long as it does
    return run, {"tensorflow": tf.__version__, "import_s": import_s}


def _serve(run: Any, given: tuple[Golden, ...], request: Mapping[str, Any]) -> dict[str, Any]:
    golden = given[request["at"]]
    if "file" in request:
        Path(request["file"]).write_bytes(pack_goldens([Golden(golden.batch, {}, run(golden.inputs))]))
        return {}
    seconds = []
    for _ in range(request["calls"]):
        start = time.perf_counter()
        run(golden.inputs)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


def _say(replies: Any, reply: Mapping[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()
