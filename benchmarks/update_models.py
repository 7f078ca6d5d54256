"""Versions whose answers are known to the last bit, and versions that must not load."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.checked_load import Question
from converters import TensorSpec, export_bundle
from converters.bundle import digest_line
from jaxport.tensors import array_to_tensor
from jaxport.wire import prediction_pb2 as wire

MODEL = "counted"
SIZES = (4, 64, 64, 3)
ROWS = (1, 2, 3)  # of the requests
# Programs that differ in nothing but this factor: another one is another program to compile.
FACTORS = (1.0, -1.0, 2.0, -2.0, 4.0, -4.0)


def whole_params(version: int) -> dict[str, np.ndarray]:
    """Small whole numbers: every sum is exact in float32 in any order, so every bucket gives the same bits."""
    rng = np.random.default_rng(version)
    return {
        f"w{i}": rng.integers(-3, 4, size=(n, m)).astype(np.float32)
        for i, (n, m) in enumerate(itertools.pairwise(SIZES))
    }


def forward(numpy: Any, params: dict[str, Any], x: Any, factor: float) -> Any:
    """The 4-64-64-3 MLP without biases, in numpy or in jax.numpy."""
    for i in range(3):
        x = x @ params[f"w{i}"]
        x = numpy.maximum(x, 0) if i < 2 else x
    return x * np.float32(factor)


def export_version(folder: Path, version: int, program: int) -> Path:
    """One bundle; equal `program` means that only the weights differ."""
    factor = FACTORS[program % len(FACTORS)]
    x = np.arange(20, dtype=np.float32).reshape(5, 4) % 7 - 3
    return export_bundle(
        folder / MODEL / str(version),
        lambda params, x: {"y": forward(jax.numpy, params, x, factor)},
        whole_params(version),
        inputs={"x": TensorSpec("float32", "b, 4")},
        outputs=("y",),
        example={"x": x},
        platforms=("cpu", "cuda"),
    )


def questions(programs: dict[int, int], labels: tuple[str, ...]) -> list[Question]:
    """Requests of one to three rows, by default and by each label. programs: version -> its program."""
    rng = np.random.default_rng(0)
    made = []
    for rows, label in itertools.product(ROWS, labels):
        x = rng.integers(-3, 4, size=(rows, 4)).astype(np.float32)
        answers = {
            version: forward(np, whole_params(version), x, FACTORS[program % len(FACTORS)]).tobytes()
            for version, program in programs.items()
        }
        request = wire.PredictRequest(model=MODEL, label=label, inputs=[array_to_tensor("x", x)])
        made.append(Question(request.SerializeToString(), answers))
    return made


def publish(source: Path, target: Path, damage: Callable[[Path], None] = lambda _: None) -> None:
    """As an exporter does: under a hidden name, then renamed. damage: what has gone wrong with it before."""
    hidden = target.parent / f".{target.name}.writing"
    shutil.copytree(source, hidden)
    damage(hidden)
    hidden.rename(target)


def cut(bundle: Path) -> None:
    """A copy that ended early: a file is short."""
    program = bundle / "programs/predict.jaxexport"
    program.write_bytes(program.read_bytes()[:-100])


def flip(bundle: Path) -> None:
    """One bit of the goldens."""
    golden = bundle / "golden/predict.npz"
    data = bytearray(golden.read_bytes())
    data[len(data) // 2] ^= 1
    golden.write_bytes(data)


def lose(bundle: Path) -> None:
    """A file that was never copied."""
    (bundle / "programs/predict.jaxexport").unlink()


def only_cuda(bundle: Path) -> None:
    """Exported for another platform."""
    _reseal(bundle, {"platforms": ["cuda"]})


def wrong_goldens(other: Path) -> Callable[[Path], None]:
    """The goldens of another version, with every digest right."""

    def damage(bundle: Path) -> None:
        shutil.copy(other / "golden/predict.npz", bundle / "golden/predict.npz")
        digests = json.loads((other / "manifest.json").read_bytes())["files"]
        files = json.loads((bundle / "manifest.json").read_bytes())["files"]
        _reseal(bundle, {"files": {**files, "golden/predict.npz": digests["golden/predict.npz"]}})

    return damage


def _reseal(bundle: Path, changed: dict[str, Any]) -> None:
    data = json.dumps({**json.loads((bundle / "manifest.json").read_bytes()), **changed}).encode()
    (bundle / "manifest.json").write_bytes(data)
    (bundle / "manifest.json.sha256").write_text(digest_line(data))
