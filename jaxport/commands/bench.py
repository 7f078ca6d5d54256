"""jaxport bench MODEL [--concurrency 1,8,64] [--seconds 5] [--rate QPS] [--json] [--plot f.png]"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from jaxport.client import Client
from jaxport.errors import CheckFailed, NotFit, UsageError
from jaxport.flags import add_connection_flags, client_from, message_bytes, security_from
from jaxport.load import Load, Tally, run_load
from jaxport.scrape import Scrape, difference, http_address, scrape
from jaxport.tensors import array_to_tensor
from jaxport.wire import prediction_pb2 as wire

DIFFERENT = 8  # requests made in advance and sent in turn
MOST_PROCESSES = 4


@dataclass(frozen=True)
class Result:
    """One concurrency. Times in milliseconds at the client; what the server's /metrics did not give is None."""

    model: str
    version: int
    concurrency: int
    rows_per_request: int
    seconds: float
    requests: int
    requests_per_s: float
    rows_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    errors: int
    error_statuses: dict[str, int]
    server_cpu_us_per_request: float | None
    mean_batch_rows: float | None
    compiles_after_ready: float | None


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("model", help="the model's name on the server")
    flag("--concurrency", default="1,8,64", metavar="N,...", help="requests in flight (default: 1,8,64)")
    flag("--seconds", type=float, default=5.0, help="for each concurrency (default: 5)")
    flag("--rows", type=int, default=1, help="rows of a request (default: 1)")
    flag("--rate", type=float, default=0.0, metavar="QPS", help="open loop: requests start by the clock")
    flag("--signature", default="predict", help="which program (default: predict)")
    flag("--processes", type=int, default=0, help="load processes (default: one a core, at most 4)")
    flag(
        "--http-address", metavar="HOST:PORT", help="the server's metrics (default: the same host, port 8501)"
    )
    flag("--json", action="store_true", help="one object per concurrency, in a list")
    flag("--plot", type=Path, metavar="FILE.png", help="draw throughput and latency")
    add_connection_flags(parser)


def run(options: argparse.Namespace) -> int:
    levels = _parse_levels(options)
    if options.plot:
        _require_matplotlib()
        if not options.plot.absolute().parent.is_dir():
            raise UsageError(f"--plot {options.plot}: its folder does not exist")
    with client_from(options) as client:
        version, requests = _prepare(client, options)
    metrics = options.http_address or http_address(options.address)
    if scrape(metrics) is None:
        print(
            f"note: no metrics at {metrics}; name the server's --http-port by --http-address",
            file=sys.stderr,
        )
    results = [_measure(options, version, requests, level, metrics) for level in levels]
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        _table(results)
    if options.plot:
        _plot(results, options.plot)
    failed = sum(result.errors for result in results)
    if failed:
        statuses = sorted({status for result in results for status in result.error_statuses})
        raise CheckFailed(f"{failed} requests failed with {', '.join(statuses)}")
    return 0


def _parse_levels(options: argparse.Namespace) -> list[int]:
    levels = [part.strip() for part in options.concurrency.split(",")]
    if not all(level.isdigit() and int(level) > 0 for level in levels):
        raise UsageError(
            f"--concurrency {options.concurrency!r}: positive integers joined by commas are needed"
        )
    finite = math.isfinite(options.seconds) and math.isfinite(options.rate)
    if not finite or options.seconds <= 0 or options.rows < 1 or options.rate < 0 or options.processes < 0:
        raise UsageError("--seconds and --rows must be positive, --rate and --processes not negative")
    return [int(level) for level in levels]


def _prepare(client: Client, options: argparse.Namespace) -> tuple[int, list[bytes]]:
    """(version, serialized requests), each of which the server has answered once."""
    found = client.model(options.model)
    signature = next((s for s in found.signatures if s.name == options.signature), None)
    if signature is None:
        known = ", ".join(s.name for s in found.signatures)
        raise UsageError(f"--signature {options.signature!r}: {options.model} has {known}")
    generator = np.random.default_rng(0)
    requests = []
    for _ in range(DIFFERENT):
        shape = _shaper(generator, signature, options.rows)
        inputs = {spec.name: _random(generator, spec, shape(spec)) for spec in signature.inputs}
        client.predict(options.model, inputs, signature=options.signature)
        tensors = [array_to_tensor(name, value) for name, value in inputs.items()]
        request = wire.PredictRequest(model=options.model, signature=options.signature, inputs=tensors)
        requests.append(request.SerializeToString())
    return found.version, requests


def _shaper(
    generator: np.random.Generator, signature: wire.Signature, rows: int
) -> Callable[[wire.TensorSpec], tuple[int, ...]]:
    """The shape of each input of one request: some length of a sequence, and some of the sizes that are served."""
    length = int(generator.integers(1, signature.lengths[-1] + 1)) if signature.lengths else 0
    sizes = {spec.shape[0]: rows for spec in signature.inputs}
    if signature.sizes:
        sizes |= signature.sizes[int(generator.integers(len(signature.sizes)))].by_symbol

    def size(dim: str) -> int:
        if dim.isdigit():
            return int(dim)
        if dim.isidentifier():
            return sizes.get(dim, length)
        from converters.dims import (
            size as size_of,
        )  # an expression: rare, and else clients need nothing of it

        return size_of(dim, sizes)

    return lambda spec: tuple(map(size, spec.shape))


def _random(generator: np.random.Generator, spec: wire.TensorSpec, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of the input's kind. Integers stay small, as they are often indices."""
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iub":
        return generator.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    return generator.normal(size=shape).astype(dtype)


def _measure(
    options: argparse.Namespace, version: int, requests: Sequence[bytes], concurrency: int, metrics: str
) -> Result:
    load = Load(
        address=options.address,
        requests=requests,
        concurrency=concurrency,
        seconds=options.seconds,
        timeout=options.timeout,
        max_message_bytes=message_bytes(options),
        rate=options.rate,
        security=security_from(options),
    )
    processes = min(options.processes or min(os.cpu_count() or 1, MOST_PROCESSES), concurrency)
    before = scrape(metrics)
    tally = run_load(load, processes)
    return _result(options, version, concurrency, tally, before, scrape(metrics))


def _result(
    options: argparse.Namespace,
    version: int,
    concurrency: int,
    tally: Tally,
    before: Scrape | None,
    after: Scrape | None,
) -> Result:
    done = len(tally.latencies)
    model = {"model": options.model}
    cpu = difference(before, after, "process_cpu_seconds_total")
    rows = difference(before, after, "jaxport_batch_rows_sum", model)
    batches = difference(before, after, "jaxport_batch_rows_count", model)
    p50, p99 = np.percentile(tally.latencies, (50, 99)) * 1e3 if done else (None, None)
    return Result(
        model=options.model,
        version=version,
        concurrency=concurrency,
        rows_per_request=options.rows,
        seconds=round(tally.seconds, 3),
        requests=done,
        requests_per_s=round(done / tally.seconds, 1),
        rows_per_s=round(done * options.rows / tally.seconds, 1),
        p50_ms=None if p50 is None else round(float(p50), 3),
        p99_ms=None if p99 is None else round(float(p99), 3),
        errors=tally.errors.total(),
        error_statuses=dict(tally.errors),
        server_cpu_us_per_request=round(cpu / done * 1e6, 1) if cpu is not None and done else None,
        mean_batch_rows=round(rows / batches, 2) if rows is not None and batches else None,
        compiles_after_ready=after.total("jaxport_compiles_after_ready_total") if after else None,
    )


def _table(results: Sequence[Result]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    first = results[0]
    title = f"{first.model} version {first.version}, {first.rows_per_request} rows a request"
    table = Table(title=Text(title, style="table.title"))
    for heading in ("in flight", "calls/s", "rows/s", "p50 ms", "p99 ms", "errors", "batch", "CPU µs"):
        table.add_column(heading, justify="right")
    for r in results:
        figures = (r.requests_per_s, r.rows_per_s, r.p50_ms, r.p99_ms, r.errors, r.mean_batch_rows)
        cells = [_short(f) for f in (*figures, r.server_cpu_us_per_request)]
        table.add_row(str(r.concurrency), *cells)
    Console().print(table)
    compiles = results[-1].compiles_after_ready
    print("batch: mean rows of a run on the device; CPU µs: of the server, per call")
    if compiles is not None:
        print(f"compiles after READY: {compiles:.0f}")


def _short(figure: float | None) -> str:
    """As many digits as a table of 80 columns has room for and a measurement has meaning."""
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if figure >= 100 or figure == int(figure) else f"{figure:.2f}"


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise NotFit("--plot needs matplotlib: pip install matplotlib") from None


def _plot(results: Sequence[Result], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    throughput, latency = figure.subplots(1, 2)
    levels = [str(r.concurrency) for r in results]
    throughput.bar(levels, [r.rows_per_s for r in results], color="tab:blue")
    throughput.set(title="throughput", xlabel="requests in flight", ylabel="rows/s")
    for name, values in (("p50", [r.p50_ms for r in results]), ("p99", [r.p99_ms for r in results])):
        latency.plot(levels, [float("nan") if v is None else v for v in values], marker="o", label=name)
    latency.set(title="latency", xlabel="requests in flight", ylabel="milliseconds")
    latency.set_ylim(bottom=0)
    latency.legend()
    figure.suptitle(f"{results[0].model} version {results[0].version}")
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise NotFit(f"--plot {file}: {error}") from None
    print(f"plot: {file}", file=sys.stderr)
