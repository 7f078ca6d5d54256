"""Three times what a server can do, for a minute: python -m benchmarks.overload [--model tiny --times 3 --seconds 60]

Requests start by the clock, whether or not earlier ones are back. What is accepted must be answered within the limit
(--max-latency of the server), the rest refused at once, memory must stay as it was, and the moment the load ends the
server must be itself again. Exit code 3 when a line of the report is broken.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import grpc
import grpc.aio

from benchmarks.serving import export_models, request_of
from jaxport.client import SERVICE
from jaxport.load import Load, run_load
from jaxport.message_size import DEFAULT_BYTES
from jaxport.scrape import difference, scrape
from jaxport.tour import served

REFUSED_MS = 5.0
RECOVER_SECONDS = 1.0
SUSTAINED_SECONDS = 8.0
MOST_GROWTH = 1.05  # of the resident memory from the first quarter of the load to its last


@dataclass
class Seen:
    """Milliseconds of what was answered and of what was refused, the rest by status; resident bytes once a second."""

    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    other: Counter[str] = field(default_factory=Counter)
    resident: list[float] = field(default_factory=list)
    recovered: float = float("inf")


async def overload(address: str, http: str, request: bytes, rate: float, seconds: float) -> Seen:
    """Sends `rate` requests a second, then asks until a request is answered as one alone is."""
    seen = Seen()
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"{SERVICE}Predict")
        await call(request)

        async def ask() -> None:
            sent = time.perf_counter()
            try:
                await call(request, timeout=60)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    seen.refused.append((time.perf_counter() - sent) * 1e3)
                else:
                    seen.other[error.code().name] += 1
            else:
                seen.answered.append((time.perf_counter() - sent) * 1e3)

        started, count, sampled = time.monotonic(), 0, 0.0
        asked: set[asyncio.Task[None]] = set()
        while (now := time.monotonic() - started) < seconds:
            while count < now * rate:
                task = asyncio.ensure_future(ask())
                asked.add(task)
                task.add_done_callback(asked.discard)
                count += 1
            if now - sampled >= 1:
                sampled = now
                figures = await asyncio.to_thread(scrape, http)
                resident = figures and figures.total("process_resident_memory_bytes")
                seen.resident.append(resident or float("nan"))
            await asyncio.sleep(0.001)
        ended = time.monotonic()
        while True:  # the first request that is accepted again
            try:
                await call(request, timeout=60)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)
            else:
                break
        seen.recovered = time.monotonic() - ended
        await asyncio.gather(*asked)
    return seen


def at(values: list[float], share: float) -> float:
    """A quantile, NaN of nothing."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def report(seen: Seen, limit_ms: float, rate: float) -> bool:
    """Prints the lines; whether all of them hold."""
    quarter = max(1, len(seen.resident) // 4)
    growth = (sum(seen.resident[-quarter:]) / quarter) / (sum(seen.resident[:quarter]) / quarter)
    lines = [
        (
            f"accepted {len(seen.answered)}: p50 {at(seen.answered, 0.5):.0f} ms, p99 {at(seen.answered, 0.99):.0f} ms "
            f"(limit {limit_ms:.0f})",
            at(seen.answered, 0.99) <= limit_ms,
        ),
        (
            f"refused {len(seen.refused)} with RESOURCE_EXHAUSTED: p50 {at(seen.refused, 0.5):.2f} ms, "
            f"p99 {at(seen.refused, 0.99):.2f} ms (limit {REFUSED_MS:.0f})",
            at(seen.refused, 0.99) <= REFUSED_MS,
        ),
        (f"other outcomes: {dict(seen.other) or 'none'}", not seen.other),
        (
            f"resident memory, last quarter over first: {growth:.3f} (limit {MOST_GROWTH})",
            growth <= MOST_GROWTH,
        ),
        (
            f"the first request after the load was answered in {seen.recovered:.2f} s (limit {RECOVER_SECONDS:.0f})",
            seen.recovered <= RECOVER_SECONDS,
        ),
    ]
    print(f"{rate:,.0f} requests/s by the clock")
    for text, holds in lines:
        print(f"  {'ok ' if holds else 'NOT'} {text}")
    return all(holds for _, holds in lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", choices=("tiny", "mlp"))
    parser.add_argument("--times", type=float, default=3.0, help="of the sustained rate (default: 3)")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--limit", type=float, default=800.0, metavar="MS", help="--max-latency (default: 800)"
    )
    options = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "grpcio", "pygrpc-native"))
    print(f"{platform.platform()}, {os.cpu_count()} cores, {versions}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        export_models(root / "models")
        request = request_of(options.model)
        with served(root, "--max-latency", f"{options.limit:g}") as (address, http):
            load = Load(
                address, [request], 8, SUSTAINED_SECONDS, timeout=60.0, max_message_bytes=DEFAULT_BYTES
            )
            tally = run_load(load, processes=1)
            sustained = len(tally.latencies) / tally.seconds
            print(f"sustained at concurrency 8: {sustained:,.1f} requests/s")
            before = scrape(http)
            rate = sustained * options.times
            seen = asyncio.run(overload(address, http, request, rate, options.seconds))
            after = scrape(http)
            compiles = difference(before, after, "jaxport_compiles_after_ready_total") or 0
    holds = report(seen, options.limit, rate) and not compiles
    print(f"compiles after READY: {compiles:.0f}")
    return 0 if holds else 3


if __name__ == "__main__":
    sys.exit(main())
