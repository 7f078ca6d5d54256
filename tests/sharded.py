"""Models for two devices, made once in a run by a process that has them, which also loads them as a server does.

python -m tests.sharded FOLDER writes FOLDER/models/, FOLDER/coming/, FOLDER/cache/ and FOLDER/facts.json.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from converters import TensorSpec
from converters.export import export_signatures
from converters.options import ExportOptions
from converters.placement import simulate
from converters.spec import SignatureSpec
from serve_grpc.cache import CompileCache, Published
from serve_grpc.cache_key import cache_key
from serve_grpc.device import open_device
from serve_grpc.loader import Loader
from serve_grpc.memory import device_count, run_bytes, weight_bytes
from serve_grpc.metrics import Metrics
from serve_grpc.settings import BatchSettings

ROOT = Path(__file__).resolve().parents[1]
MESH = {"tensor": 2}
CUTS = {"up": (None, "tensor"), "bias": ("tensor",), "down": ("tensor", None)}
# Of what is made here, and of servers that are to find it.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
BATCH = BatchSettings(max_batch=4)


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


def shapes_of_parts(arrays: Mapping[str, jax.Array]) -> dict[str, list[tuple[int, ...]]]:
    """Of what each device holds, by name."""
    return {name: [part.data.shape for part in a.addressable_shards] for name, a in arrays.items()}


def in_a_process(module: str, *arguments: Path) -> None:
    """Runs a module of the tests, which may have more devices. Raises CalledProcessError; what it said stands above."""
    environment = {**os.environ, **QUICK, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, cwd=ROOT, env=environment)


def made_by_two(folder: Path) -> None:
    """Runs this module."""
    in_a_process("tests.sharded", folder)


def loaded_as_served(folder: Path) -> dict[str, Any]:
    """Puts what both models need into the cache, and says what the wide one is like while four threads ask it and it is
    loaded, compiled and timed once more.
    """
    device = open_device()
    jax.config.update("jax_enable_compilation_cache", False)  # as of a Job that warms
    cache = CompileCache(folder / "cache", cache_key(device, {}))
    cache.prepare()
    loader = Loader(device, BATCH, Metrics(), cache, Published(cache).put)
    loader.load("one", folder / "models" / "one" / "1", None)
    path = folder / "models" / "wide" / "1"
    version = loader.load("wide", path, None)
    (program,) = version.programs.values()
    executables = list(program.executables.items())

    def ask(turn: int) -> bool:
        bucket, executable = executables[turn % len(executables)]
        return executable(program.weights, rows(bucket))["y"].is_ready()

    with ThreadPoolExecutor(5) as threads:
        again = threads.submit(Loader(device, BATCH, Metrics()).load, "wide", path, None)
        ended = list(threads.map(ask, range(80)))
        again.result()
    return {
        "parts": shapes_of_parts(program.weights),
        "weight_bytes": weight_bytes(version),
        "devices": device_count(version),
        "run_bytes": run_bytes(version.programs),
        "ended": ended,
    }


def main(folder: Path) -> None:
    simulate(2)
    export_wide(folder / "models" / "wide" / "1")
    export_wide(folder / "coming" / "wide" / "2", seed=2)
    export_wide(folder / "models" / "one" / "1", mesh={}, shardings={})
    (folder / "facts.json").write_text(json.dumps(loaded_as_served(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
