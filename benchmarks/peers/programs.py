"""The models of the comparison: a bundle for jaxport, and the same program and weights for everyone else."""

import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from converters import TensorSpec, export_bundle
from converters.bundle import open_bundle
from train_job.presets import get_preset
from train_job.weights import initialise

MLP_SIZES = (4, 64, 64, 3)
EXAMPLE_ROWS = 2
VERSION = "1"


@dataclass(frozen=True)
class Served:
    """One model. folder: its program for the peers (servers/program.py reads it). models: the folder of its bundle.

    row: [1, ...], the input that every request carries. expected: [1, ...], what the program answers to it.
    """

    name: str
    folder: Path
    models: Path
    input: str
    output: str
    row: np.ndarray
    expected: np.ndarray


@dataclass(frozen=True)
class _Source:
    fn: Callable[..., Any]
    params: Any
    inputs: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]
    example: Mapping[str, np.ndarray]


def mlp(params: Any, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def _mlp() -> _Source:
    generator = np.random.default_rng(0)
    params = [
        {"w": generator.normal(size=(a, b)).astype(np.float32), "b": np.zeros(b, np.float32)}
        for a, b in itertools.pairwise(MLP_SIZES)
    ]
    rows = generator.normal(size=(EXAMPLE_ROWS, MLP_SIZES[0])).astype(np.float32)
    return _Source(mlp, params, {"x": TensorSpec("float32", f"b, {MLP_SIZES[0]}")}, ("y",), {"x": rows})


def _tiny(last: bool) -> _Source:
    # Fresh weights: what they answer does not change what they cost.
    tiny = get_preset("tiny")
    predict = tiny.predict_fn()
    (output,) = tiny.predict_signature.outputs

    def full(params: Any, **inputs: jax.Array) -> jax.Array:
        (logits,) = jax.tree.leaves(predict(params, inputs))
        return logits[:, -1] if last else logits

    specs = {name: TensorSpec(*spec) for name, spec in tiny.predict_signature.inputs.items()}
    example = tiny.example_inputs(EXAMPLE_ROWS, seed=0)
    return _Source(full, initialise(tiny.model, seed=0), specs, (output,), example)


MODELS: Mapping[str, Callable[[], _Source]] = {
    "mlp": _mlp,
    "tiny-last": lambda: _tiny(last=True),
    "tiny-full": lambda: _tiny(last=False),
}
TITLES = {
    "mlp": "4-64-64-3 MLP, one float32 [1, 4] row a request",
    "tiny-last": "`tiny`, 256 tokens a request, logits of the last position",
    "tiny-full": "`tiny`, 256 tokens a request, logits of every position",
}


def export(name: str, root: Path) -> Served:
    """Exports model `name` under `root`, afresh: bundle and peers' folder hold the same program and weights."""
    source = MODELS[name]()
    models, folder = root / "models" / name, root / "programs" / name
    for old in (models, folder):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    path = models / name / VERSION
    export_bundle(
        path, source.fn, source.params, inputs=source.inputs, outputs=source.outputs, example=source.example
    )
    return _unpacked(name, path, folder, source.example)


def _unpacked(name: str, path: Path, folder: Path, example: Mapping[str, np.ndarray]) -> Served:
    bundle = open_bundle(path)
    exported = bundle.exported()
    weights = bundle.load_weights()
    signature = bundle.signature()
    (given,), (made,) = signature.inputs, signature.outputs
    row = example[given.name][:1]
    expected = np.asarray(jax.jit(exported.call)(weights, {given.name: row})[made.name])
    np.savez(folder / "weights.npz", allow_pickle=False, **weights)
    (folder / "program.jaxexport").write_bytes(exported.serialize())
    spec = {
        "input": {"name": given.name, "dtype": row.dtype.name, "row": row.shape[1:]},
        "output": {"name": made.name, "dtype": expected.dtype.name, "row": expected.shape[1:]},
    }
    (folder / "program.json").write_text(json.dumps(spec))
    return Served(name, folder, path.parent.parent, given.name, made.name, row, expected)
