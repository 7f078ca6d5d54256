"""Load on a server from several processes: one Python process is the bottleneck long before the server is.

Closed loop: each of `concurrency` callers sends its next request when the last is answered. Open loop (a rate): requests
start by the clock whether or not earlier ones are back, and a latency counts from when its request was due, so a
server that stalls is not flattered.
"""

import asyncio
import contextlib
import multiprocessing
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import grpc
import grpc.aio

from jaxport.client import SERVICE, channel_options
from jaxport.errors import NotFit
from jaxport.security import Security

START_SECONDS = 60.0  # for every process to import and connect
PAUSE_AFTER_ERROR = 0.01


@dataclass(frozen=True)
class Load:
    """What one process is to send. `requests` are serialized once and sent in turn; `rate` 0 is a closed loop."""

    address: str
    requests: Sequence[bytes]
    concurrency: int
    seconds: float
    timeout: float
    max_message_bytes: int
    rate: float = 0.0
    security: Security = field(default_factory=Security)


@dataclass
class Tally:
    """What came back: a latency in seconds per answered request, errors by status, and how long it took."""

    latencies: array = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, other: "Tally") -> None:
        self.latencies.extend(other.latencies)
        self.errors.update(other.errors)
        self.seconds = max(self.seconds, other.seconds)


def run_load(load: Load, processes: int) -> Tally:
    """Shares the load among `processes`, which start together. NotFit: one of them could not start."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes + 1)
    workers = []
    for index in range(processes):
        share = _share(load, index, processes)
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(share, barrier, theirs), daemon=True)
        worker.start()
        theirs.close()
        workers.append((worker, ours))
    try:
        barrier.wait(START_SECONDS)
        return _collect(workers)
    except (EOFError, OSError, RuntimeError) as error:
        raise NotFit(
            f"a load process ended before it was done ({type(error).__name__}); try a smaller load"
        ) from error
    finally:
        for worker, _ in workers:
            worker.terminate()


def _share(load: Load, index: int, processes: int) -> Load:
    concurrency = load.concurrency // processes + (index < load.concurrency % processes)
    return replace(load, concurrency=concurrency, rate=load.rate / processes)


def _collect(workers: Sequence[tuple[Any, Connection]]) -> Tally:
    total = Tally()
    for worker, connection in workers:
        total.add(connection.recv())
        worker.join()
    return total


def _work(load: Load, barrier: Barrier, results: Connection) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # the parent says what happened
        results.send(asyncio.run(_send(load, barrier)))


async def _send(load: Load, barrier: Barrier) -> Tally:
    tally = Tally()
    async with _channel(load) as channel:
        call = channel.unary_unary(f"{SERVICE}Predict")
        # The connection is made before the clock starts; a refusal will show itself in the tally.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(channel.channel_ready(), load.timeout)
        barrier.wait(START_SECONDS)
        start = time.perf_counter()
        senders = (
            [_open_loop(call, load, start, tally)] if load.rate else _closed_loops(call, load, start, tally)
        )
        await asyncio.gather(*senders)
        tally.seconds = time.perf_counter() - start
    return tally


def _channel(load: Load) -> grpc.aio.Channel:
    options = channel_options(load.max_message_bytes)
    credentials = load.security.credentials()
    if credentials is None:
        return grpc.aio.insecure_channel(load.address, options)
    return grpc.aio.secure_channel(load.address, credentials, options)


def _closed_loops(call: Any, load: Load, start: float, tally: Tally) -> list[Any]:
    async def caller(offset: int) -> None:
        turn = offset
        while (now := time.perf_counter()) < start + load.seconds:
            await _one(call, load, load.requests[turn % len(load.requests)], now, tally)
            turn += 1

    return [caller(offset) for offset in range(load.concurrency)]


async def _open_loop(call: Any, load: Load, start: float, tally: Tally) -> None:
    places = asyncio.Semaphore(load.concurrency)

    async def sender(due: float, request: bytes) -> None:
        async with places:
            await _one(call, load, request, due, tally)

    async with asyncio.TaskGroup() as senders:
        for turn in range(int(load.seconds * load.rate)):
            due = start + turn / load.rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            senders.create_task(sender(due, load.requests[turn % len(load.requests)]))


async def _one(call: Any, load: Load, request: bytes, since: float, tally: Tally) -> None:
    try:
        await call(request, timeout=load.timeout, metadata=load.security.metadata)
    except grpc.aio.AioRpcError as error:
        tally.errors[error.code().name] += 1
        await asyncio.sleep(PAUSE_AFTER_ERROR)
    else:
        tally.latencies.append(time.perf_counter() - since)
