"""The server beside the in-process rate of the same executables: python -m benchmarks.serving [--seconds 3]

For a 4-64-64-3 MLP (the transport is all there is to pay) and for `tiny` (the device is). Rounds alternate between
the two sides on one machine, so the ratios hold where the absolute figures drift. The load generator shares the cores
with the server: on a small machine that is part of the served figure.
"""

import argparse
import itertools
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from converters import TensorSpec, export_bundle
from jaxport.load import Load, run_load
from jaxport.message_size import DEFAULT_BYTES
from jaxport.scrape import difference, scrape
from jaxport.tensors import array_to_tensor
from jaxport.tour import served
from jaxport.wire import prediction_pb2 as wire
from serve_grpc.device import open_device
from serve_grpc.loader import Loader
from serve_grpc.metrics import Metrics
from serve_grpc.program import Program
from serve_grpc.settings import BatchSettings
from train_job.presets import get_preset
from train_job.weights import initialise

CONCURRENCY = 64


@dataclass(frozen=True)
class Round:
    """One round of one model: rows per second on either side, and what the server spent and did."""

    in_process: float
    served: float
    cpu_us: float
    batch_rows: float


def mlp(params: Any, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def export_models(models: Path) -> None:
    """The two bundles. Fresh weights: what they answer does not change what they cost."""
    generator = np.random.default_rng(0)
    sizes = (4, 64, 64, 3)
    params = [
        {"w": generator.normal(size=(a, b)).astype(np.float32), "b": np.zeros(b, np.float32)}
        for a, b in itertools.pairwise(sizes)
    ]
    rows = generator.normal(size=(64, 4)).astype(np.float32)
    x = {"x": TensorSpec("float32", "b, 4")}
    export_bundle(models / "mlp" / "1", mlp, params, inputs=x, outputs=("y",), example={"x": rows})
    tiny = get_preset("tiny")
    predict = tiny.predict_fn()
    export_bundle(
        models / "tiny" / "1",
        lambda params, **inputs: predict(params, inputs),
        initialise(tiny.model, seed=0),
        inputs={name: TensorSpec(*spec) for name, spec in tiny.predict_signature.inputs.items()},
        outputs=tiny.predict_signature.outputs,
        example=tiny.example_inputs(64, seed=0),
    )


def request_of(model: str) -> bytes:
    """A Predict of one row for either model."""
    if model == "mlp":
        tensor = array_to_tensor("x", np.zeros((1, 4), np.float32))
    else:
        specs = get_preset(model).predict_signature.inputs
        [(name, (dtype, shape))] = specs.items()
        sizes = [int(size) for size in shape.split(",")[1:]]
        tensor = array_to_tensor(name, np.zeros((1, *sizes), dtype))
    return wire.PredictRequest(model=model, inputs=[tensor]).SerializeToString()


def in_process_rows_per_s(program: Program, bucket: int, seconds: float) -> float:
    """The executable called in a loop by this process: from numpy to numpy."""
    inputs = {rule.name: np.zeros((bucket, *rule.tail), rule.dtype) for rule in program.rules.inputs}
    runs, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        jax.tree.map(np.asarray, program.executables[bucket](program.weights, inputs))
        runs += 1
    return runs * bucket / took


def served_round(
    address: str, http: str, model: str, program: Program, seconds: float
) -> tuple[float, float, float]:
    """(rows/s, server CPU microseconds per request, mean batch) at concurrency 64, one row a request."""
    tensors = [
        array_to_tensor(rule.name, np.zeros((1, *rule.tail), rule.dtype)) for rule in program.rules.inputs
    ]
    request = wire.PredictRequest(model=model, inputs=tensors).SerializeToString()
    load = Load(address, [request], CONCURRENCY, seconds, timeout=60.0, max_message_bytes=DEFAULT_BYTES)
    before = scrape(http)
    tally = run_load(load, processes=min(os.cpu_count() or 1, 4))
    after = scrape(http)
    if tally.errors:
        raise SystemExit(f"{model}: {tally.errors.total()} requests failed ({dict(tally.errors)})")
    done = len(tally.latencies)
    cpu = difference(before, after, "process_cpu_seconds_total") or 0.0
    rows = difference(before, after, "jaxport_batch_rows_sum", {"model": model}) or 0.0
    batches = difference(before, after, "jaxport_batch_rows_count", {"model": model}) or 1.0
    return done / tally.seconds, cpu / done * 1e6, rows / batches


def measure(models: Path, rounds: int, seconds: float) -> dict[str, tuple[int, list[Round]]]:
    """Per model the bucket with the highest in-process rate, and its rounds."""
    loader = Loader(open_device(), BatchSettings(), Metrics())
    programs = {
        name: loader.load(name, models / name / "1", None).programs["predict"] for name in ("mlp", "tiny")
    }
    best = {name: _best_bucket(program, seconds / 10) for name, program in programs.items()}
    found: dict[str, tuple[int, list[Round]]] = {name: (best[name], []) for name in programs}
    with served(models.parent) as (address, http):
        for _ in range(rounds):
            for name, program in programs.items():
                alone = in_process_rows_per_s(program, best[name], seconds)
                rate, cpu, rows = served_round(address, http, name, program, seconds)
                found[name][1].append(Round(alone, rate, cpu, rows))
    return found


def _best_bucket(program: Program, seconds: float) -> int:
    return max(program.executables, key=lambda bucket: in_process_rows_per_s(program, bucket, seconds))


def report(found: dict[str, tuple[int, list[Round]]], console: Console) -> None:
    table = Table(title=f"rows/s, {CONCURRENCY} requests in flight, medians")
    for heading in ("model", "in process", "served", "ratio", "min-max", "batch", "CPU µs"):
        table.add_column(heading, justify="right")
    for name, (bucket, rounds) in found.items():
        ratios = [r.served / r.in_process for r in rounds]
        table.add_row(
            name,
            f"{median([r.in_process for r in rounds]):,.0f} at {bucket}",
            f"{median([r.served for r in rounds]):,.0f}",
            f"{median(ratios):.3f}",
            f"{min(ratios):.3f}-{max(ratios):.3f}",
            f"{median([r.batch_rows for r in rounds]):.1f}",
            f"{median([r.cpu_us for r in rounds]):,.0f}",
        )
    console.print(table)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each side in a round (default: 3)")
    options = parser.parse_args()
    console = Console()
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "grpcio", "numpy"))
    console.print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
    )
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        export_models(models)
        report(measure(models, options.rounds, options.seconds), console)
    console.print("batch: mean rows of a run on the device; CPU µs: of the server, per request of one row")


if __name__ == "__main__":
    main()
