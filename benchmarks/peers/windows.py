"""One window: a server is checked, loaded, checked again, and what it spent is read from the outside."""

import http.client
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from benchmarks.peers import load
from benchmarks.peers.candidates import Started
from benchmarks.peers.load import BadLoad
from benchmarks.peers.processes import NotStarted, cpu_seconds
from benchmarks.peers.programs import Served
from benchmarks.peers.wires import WrongReply

START_SECONDS = 300.0
WARM_SECONDS = 0.5
# A resting server that takes more than this is named beside the figures.
RESTING_CORES = 0.02
# What a server that does not do its work can make a check or a load raise.
FAULTS = (NotStarted, BadLoad, WrongReply, OSError, http.client.HTTPException, grpc.RpcError, ValueError)


@dataclass(frozen=True)
class Window:
    """cpu_us: of the server's whole process tree, per request. others: cores that resting servers took, by name."""

    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    others: Mapping[str, float]


def await_ready(started: Started, model: Served) -> None:
    """Waits until it says ready and a checked reply comes: some listen before their worker has loaded.

    Raises one of FAULTS.
    """
    end = time.monotonic() + START_SECONDS
    started.server.wait(START_SECONDS)
    while True:
        try:
            started.candidate.wire.check(model, started.port)
        except FAULTS as fault:
            if not started.server.alive():
                raise NotStarted(f"ended before it answered: {started.server.last_line()}") from fault
            if time.monotonic() > end:
                raise
            time.sleep(0.3)
        else:
            return


def measure(
    started: Started, model: Served, concurrency: int, seconds: float, others: Sequence[Started] = ()
) -> Window:
    """Warm-up, then one window of `seconds`. Raises one of FAULTS."""
    wire, root = started.candidate.wire, started.server.root
    reply = wire.check(model, started.port)
    load.warm(wire, model, started.port, concurrency, WARM_SECONDS)
    started.server.settle()
    resting = [cpu_seconds(other.server.root) for other in others]
    before, start = cpu_seconds(root), time.monotonic()
    figures = load.run(wire, model, started.port, concurrency, seconds, reply)
    spent, took = cpu_seconds(root) - before, time.monotonic() - start
    awake = {
        other.candidate.name: round(cores, 3)
        for other, then in zip(others, resting, strict=True)
        if (cores := (cpu_seconds(other.server.root) - then) / took) > RESTING_CORES
    }
    started.server.settle()
    wire.check(model, started.port)
    return Window(
        figures.requests,
        figures.requests_per_s,
        figures.p50_ms,
        figures.p99_ms,
        cpu_us=spent / took / figures.requests_per_s * 1e6,
        others=awake,
    )


def reason(fault: BaseException) -> str:
    """One line for the table."""
    text = (
        fault.details() if isinstance(fault, grpc.RpcError) and isinstance(fault, grpc.Call) else str(fault)
    )
    return f"{type(fault).__name__}: {' '.join((text or '').split())[:160]}"
