"""Bundles for two devices, and what a process that has two finds out about them: made once in a run, since it takes one.

python -m tests.sharded FOLDER writes FOLDER/models/, FOLDER/coming/ and FOLDER/facts.json.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from converters import SequenceSpec, TensorSpec, export_bundle, load_bundle, open_bundle
from converters.export import export_signatures
from converters.options import ExportOptions
from converters.placement import simulate
from converters.spec import SignatureSpec
from serve_grpc.device import open_device
from serve_grpc.memory import device_count, run_bytes, weight_bytes
from serve_grpc.metrics import Metrics
from serve_grpc.settings import BatchSettings
from serve_grpc.version import Loader

ROOT = Path(__file__).resolve().parents[1]
MESH = {"tensor": 2}
CUTS = {"up": (None, "tensor"), "bias": ("tensor",), "down": ("tensor", None)}


def wide_params(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"up": (4, 64), "bias": (64,), "down": (64, 8)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def wide(params: Any, x: Any, xp: Any = jnp) -> dict[str, Any]:
    """One layer and its answer: a sum over the devices behind the second product."""
    return {"y": xp.tanh(x @ params["up"] + params["bias"]) @ params["down"]}


def rows(count: int, seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)}


def export_wide(path: Path, seed: int = 0, **options: Any) -> Path:
    """float32 [b, 4] -> [b, 8]; for two devices unless `options` say otherwise."""
    spec = SignatureSpec(
        wide,
        {"x": TensorSpec("float32", "b, 4")},
        ("y",),
        rows(5),
        fixed_batches=options.pop("fixed_batches", None),
    )
    asked = ExportOptions(**({"mesh": MESH, "shardings": CUTS} | options))
    return export_signatures(path, wide_params(seed), {"predict": spec}, asked)


def along(params: Any, x: Any, y: Any) -> dict[str, Any]:
    """x [b, t] and y [b, k]: what each position adds to those before it, and y scaled."""
    return {"running": jnp.cumsum(x * params["w"].sum(), axis=1), "scaled": y * params["w"].max()}


def export_along(path: Path) -> Path:
    """A sequence, a size and gradients in one."""
    shapes = {"x": "b, t", "y": "b, k"}
    rng = np.random.default_rng(3)
    return export_bundle(
        path,
        along,
        {"w": np.arange(1, 5, dtype=np.float32)},
        inputs={name: TensorSpec("float32", shape) for name, shape in shapes.items()},
        outputs=("running", "scaled"),
        example={name: rng.normal(size=(3, 2)).astype(np.float32) for name in shapes},
        sequence=SequenceSpec("t", most=2),
        sizes={"k": (2,)},
        vjp_order=1,
        mesh=MESH,
        shardings={"*": ("tensor",)},
    )


def made_by_two(folder: Path) -> None:
    """Runs this module in a process with two devices. Raises CalledProcessError, with what it said above it."""
    command = [sys.executable, "-m", "tests.sharded", str(folder)]
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_PLATFORMS": "cpu"}
    subprocess.run(command, check=True, cwd=ROOT, env=environment)


def _shards(array: jax.Array) -> list[tuple[int, ...]]:
    return [shard.data.shape for shard in array.addressable_shards]


def _served(path: Path) -> dict[str, Any]:
    """Of a version loaded as a server does, while four threads ask and it is loaded once more."""
    device = open_device()
    loader = Loader(device, BatchSettings(max_batch=4), Metrics())
    version = loader.load("wide", path, None)
    (program,) = version.programs.values()
    executables = list(program.executables.items())

    def ask(turn: int) -> bool:
        bucket, executable = executables[turn % len(executables)]
        return executable(program.weights, rows(bucket))["y"].is_ready()

    with ThreadPoolExecutor(5) as threads:
        again = threads.submit(loader.load, "wide", path, None)
        ended = list(threads.map(ask, range(80)))
        again.result()
    return {
        "shards": {name: _shards(array) for name, array in program.weights.items()},
        "weight_bytes": weight_bytes(version),
        "devices": device_count(version),
        "run_bytes": run_bytes(version.programs),
        "ended": ended,
    }


def main(folder: Path) -> None:
    simulate(2)
    models = folder / "models"
    wide_1 = export_wide(models / "wide" / "1")
    export_wide(folder / "coming" / "wide" / "2", seed=2)
    one = export_wide(models / "one" / "1", mesh={}, shardings={})
    # `down` is cut along its rows, and a scale for each of its columns is whole.
    few = export_wide(folder / "few" / "1", weights_dtype="int8", fixed_batches=(1, 2))
    series = export_along(folder / "along" / "1")

    loaded, given = load_bundle(wide_1), rows(5)
    want = wide(wide_params(), given["x"], np)["y"]
    facts: dict[str, Any] = {"off": float(np.abs(loaded.predict(**given)["y"] - want).max())}
    facts["shards"] = {name: _shards(array) for name, array in loaded.on_device.items()}
    facts["few"] = {name: _shards(array) for name, array in load_bundle(few).on_device.items()}

    graded = load_bundle(series)
    step = jax.jit(jax.grad(lambda w, x, y: graded.predict.apply(w, x=x, y=y)["running"].sum()))
    (found,) = step(graded.on_device, np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)).values()
    # Of 2 rows with sums over 1 and 2 ones each: 6 for every weight.
    facts["gradient"] = {"values": np.asarray(found).tolist(), "shards": _shards(found)}

    spread = NamedSharding(
        Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,)), PartitionSpec("data")
    )
    bundle, six = open_bundle(one), rows(6)["x"]
    got = jax.jit(bundle.exported().call)(bundle.load_weights(), {"x": jax.device_put(six, spread)})["y"]
    want = wide(wide_params(), six, np)["y"]
    facts["spread"] = {"off": float(np.abs(np.asarray(got) - want).max()), "shards": _shards(got)}
    facts["served"] = _served(wide_1)
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
