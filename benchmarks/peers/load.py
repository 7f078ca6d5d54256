"""h2load as the client: one timed run, its summary and its log of every request."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.programs import Served
from benchmarks.peers.wires import Wire

STREAMS_PER_CONNECTION = 8
GRPC_PREFIX = 5  # bytes before a message: a flag and its length
SPARE_SECONDS = 60.0


class BadLoad(Exception):
    """A run of the load generator whose figures mean nothing; the reason is the message."""


@dataclass(frozen=True)
class Summary:
    """What h2load prints at the end. data: bytes of bodies."""

    done: int
    succeeded: int
    failed: int
    data: int


@dataclass(frozen=True)
class Figures:
    """requests_per_s: between the end of the ramp and the last reply."""

    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float


def connections(grpc: bool, concurrency: int) -> tuple[int, int]:
    """(connections, requests in flight on each): 8 streams on a gRPC connection, one request on an HTTP/1.1 one."""
    if not grpc:
        return concurrency, 1
    streams = min(concurrency, STREAMS_PER_CONNECTION)
    return concurrency // streams, streams


def command(wire: Wire, port: int, concurrency: int, seconds: float, body: Path, log: Path) -> list[str]:
    clients, streams = connections(wire.grpc, concurrency)
    line = ["h2load", "-c", str(clients), "-m", str(streams), "-t", "1", "-D", f"{round(seconds * 1000)}ms"]
    line += ["-d", str(body), "--log-file", str(log)]
    if not wire.grpc:
        line.append("--h1")
    for header in wire.headers():
        line += ["-H", header]
    return [*line, f"http://127.0.0.1:{port}{wire.path}"]


def run(wire: Wire, model: Served, port: int, concurrency: int, seconds: float, reply_bytes: int) -> Figures:
    """Loads the server; reply_bytes: of a right reply. Raises BadLoad where not every reply was a whole one."""
    with tempfile.TemporaryDirectory() as folder:
        summary = parse_summary(_h2load(wire, model, port, concurrency, seconds, Path(folder)))
        check_bytes(summary, reply_bytes + (GRPC_PREFIX if wire.grpc else 0))
        return figures(np.loadtxt(Path(folder) / "log", dtype=np.int64, ndmin=2), concurrency, seconds)


def warm(wire: Wire, model: Served, port: int, concurrency: int, seconds: float) -> None:
    """The same load, not judged: it may be too short for one reply."""
    with tempfile.TemporaryDirectory() as folder:
        _h2load(wire, model, port, concurrency, seconds, Path(folder))


def _h2load(wire: Wire, model: Served, port: int, concurrency: int, seconds: float, folder: Path) -> str:
    """What it prints; its log is folder/log."""
    body = folder / "body"
    body.write_bytes(wire.body(model))
    done = subprocess.run(
        command(wire, port, concurrency, seconds, body, folder / "log"),
        capture_output=True, text=True, timeout=seconds + SPARE_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BadLoad(f"h2load ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


def parse_summary(text: str) -> Summary:
    """Raises BadLoad where the lines are not there."""
    requests = re.search(
        r"^requests: .*?(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", text, re.MULTILINE
    )
    data = re.search(r"\((\d+)\) data$", text, re.MULTILINE)
    if not requests or not data:
        raise BadLoad(f"h2load printed no summary: {text.strip()[-200:]!r}")
    done, succeeded, failed, errored = (int(value) for value in requests.groups())
    return Summary(done, succeeded, failed + errored, int(data[1]))


def check_bytes(summary: Summary, reply_bytes: int) -> None:
    """Raises BadLoad where a reply failed or was not whole.

    HTTP says 200 also when gRPC's trailers hold an error; such a reply has no message, so bytes would be missing.
    """
    if not summary.succeeded:
        raise BadLoad("no reply within the window")
    if summary.failed:
        raise BadLoad(f"{summary.failed} of {summary.done} requests failed")
    if summary.data < summary.succeeded * reply_bytes:
        raise BadLoad(
            f"{summary.succeeded} replies of {reply_bytes} bytes would be {summary.succeeded * reply_bytes} "
            f"bytes; there were {summary.data}"
        )


def figures(log: np.ndarray, concurrency: int, seconds: float) -> Figures:
    """From h2load's log [n, 3]: start in us since the epoch, HTTP status, us until the end of the reply.

    The first `concurrency` replies are the ramp: work comes in batches, and a window that began in the middle of one
    would favour small ones. Raises BadLoad where the replies stopped before the window did.
    """
    if not (log[:, 1] == 200).all():
        raise BadLoad(f"HTTP status {log[log[:, 1] != 200][0, 1]} in the log")
    ends = np.sort(log[:, 0] + log[:, 2])
    p50, p99 = np.percentile(log[:, 2] / 1000, (50, 99))
    if len(ends) <= 2 * concurrency:
        return Figures(len(ends), len(ends) / seconds, float(p50), float(p99))
    if ends[-1] - log[:, 0].min() < seconds * 5e5:
        raise BadLoad(f"the replies stopped half way through {seconds:g} s")
    took = (ends[-1] - ends[concurrency - 1]) / 1e6
    return Figures(len(ends), (len(ends) - concurrency) / took, float(p50), float(p99))
