"""What Prometheus can ask: a histogram per stage, and counters of what must not happen. Names begin with jaxport_."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from datetime import time as clock

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from converters.window import window_of
from serve_grpc.batcher import Work
from serve_grpc.ended import Ended, Listener, Request, Run
from serve_grpc.errors import Code
from serve_grpc.histogram import Histogram, HistogramFamily
from serve_grpc.run_totals import RunTotals
from serve_grpc.trace_context import Trace, trace_of
from serve_grpc.transport import Call, Metadata

SECONDS = (
    50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.5e-3, 3e-3, 6e-3, 12e-3, 25e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 15
)  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
VERSION = ("model", "version")
WRITER = ("jaxlib", "window_begins", "window_ends")
LONGEST_ADDRESS = 64


class Metrics:
    """All series of one server, in a registry of its own.

    listeners: told of every request that ends. trace_of: finds the trace of a request for them. Both are set before
    the first request comes.
    """

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self._run_totals: dict[tuple[str, int], RunTotals] = {}
        self.trace_of: Callable[[Metadata], Trace] = trace_of
        disable_created_metrics()  # a second series for every one, with its time of birth
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.request_seconds = self._histogram(
            "jaxport_request_seconds", "Accepted to answered", (*VERSION, "protocol", "status")
        )
        self.queue_seconds = self._histogram("jaxport_queue_seconds", "Accepted to leaving the queue")
        self.assemble_seconds = self._histogram("jaxport_assemble_seconds", "Copying rows into a bucket")
        self.device_seconds = self._histogram("jaxport_device_seconds", "One run of a bucket, to its results")
        self.encode_seconds = self._histogram(
            "jaxport_encode_seconds", "Results of a run to its answers handed to the transport"
        )
        self.batch_rows = self._histogram("jaxport_batch_rows", "Rows of a run, padding aside", buckets=ROWS)
        self.padding_rows = self._counter("jaxport_padding_rows", "Rows run for nothing", VERSION)
        self.padding_positions = self._counter(
            "jaxport_padding_positions", "Positions run for nothing behind the ends of rows", VERSION
        )
        self.queue_depth = self._gauge("jaxport_queue_depth", "Rows that wait", (*VERSION, "signature"))
        self.window_seconds = self._gauge(
            "jaxport_bundle_window_seconds", "Until a newer jaxlib may refuse the program", VERSION
        )
        self.written_by = self._gauge(
            "jaxport_bundle_info",
            "1 per version; its labels: what wrote it, and the days of releases that are promised to read it",
            (*VERSION, *WRITER),
        )
        self.shed = self._counter("jaxport_shed", "Requests answered without a run", ("model", "reason"))
        self.swap_seconds = self._histogram(
            "jaxport_swap_seconds", "Version seen to version serving", ("model",)
        )
        self.load_failures = self._counter(
            "jaxport_load_failures", "Versions that were refused", ("model", "reason")
        )
        self.policy_problems = self._counter(
            "jaxport_policy_problems", "Policies, labels and folders that could not be followed", ("model",)
        )
        self.cache_misses = self._counter(
            "jaxport_compile_cache_misses", "Executables the compile cache did not have", ()
        )
        self.compiles = self._counter("jaxport_compiles", "Traces and compiles since the start", ())
        self.compiles_after_ready = self._counter(
            "jaxport_compiles_after_ready", "Traces and compiles by a request: a fault", ()
        )

        self.access_log_lost = self._counter(
            "jaxport_access_log_lost", "Lines that could not be written to --access-log", ()
        )
        self.traces_lost = self._counter(
            "jaxport_traces_lost", "Sampled requests whose spans did not reach --trace-endpoint", ()
        )

    def found(self, model: str, reasons: Iterable[str]) -> None:
        """A model is in the folder: what may go wrong with it is counted from 0, so that the first time is an increase.

        reasons: those of jaxport_load_failures_total.
        """
        self.policy_problems.labels(model)
        for reason in reasons:
            self.load_failures.labels(model, reason)

    def unrouted(self, call: Call, protocol: str, code: Code, reason: str, model: str = "") -> None:
        """A request was answered that reached no model. model: the name it gave, if any."""
        now = time.monotonic()
        # A name that came from outside must not become a label.
        self.request_seconds.labels("", "", protocol, code.name).observe(now - call.received)
        if self.listeners:
            self.tell(Ended(model, 0, "", code, reason, now, None, (self.describe(call, protocol),)))

    def looked_up(self, call: Call, protocol: str) -> None:
        """A request was answered from what the server knows of its models: no inference, so in no series."""
        if self.listeners:
            requests = (self.describe(call, protocol),)
            self.tell(Ended("", 0, "", Code.OK, "", time.monotonic(), None, requests))

    def run_totals(self, model: str, version: int) -> RunTotals:
        """What the runs of a version add up to; like a counter it outlives the version."""
        return self._run_totals.setdefault((model, version), RunTotals())

    def describe(self, call: Call, protocol: str, started: float = 0.0, rows: int = 0) -> Request:
        """What listeners are told of one request."""
        trace = self.trace_of(call.metadata)
        return Request(call.method, protocol, _peer(call), trace, call.received, started, rows)

    def waiting(self) -> list[tuple[tuple[str, str, str], int]]:
        """((model, version, signature), rows in its queue) of every loaded version."""
        return [
            (
                (sample.labels["model"], sample.labels["version"], sample.labels["signature"]),
                int(sample.value),
            )
            for family in self.queue_depth.collect()
            for sample in family.samples
        ]

    def tell(self, ended: Ended) -> None:
        """Passes on what ended to those who listen."""
        for listener in self.listeners:
            listener(ended)

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self.registry)

    def _histogram(
        self, name: str, help: str, labels: tuple = VERSION, buckets: tuple = SECONDS
    ) -> HistogramFamily:
        return HistogramFamily(name, help, labels, buckets, self.registry)

    def _counter(self, name: str, help: str, labels: tuple) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str, labels: tuple) -> Gauge:
        return Gauge(name, help, labels, registry=self.registry)


class VersionMetrics:
    """The series of one loaded version, bound to their labels once: looking labels up costs more than observing."""

    def __init__(
        self, metrics: Metrics, model: str, version: int, window_ends: str, jaxlib: str = ""
    ) -> None:
        self._metrics = metrics
        self.model, self._version = model, version
        self._labels = (model, str(version))
        self._run_totals = metrics.run_totals(model, version)
        self._requests: dict[tuple[str, Code], Histogram] = {}
        self._depths: list[str] = []
        self._queue = metrics.queue_seconds.labels(*self._labels)
        self._assemble = metrics.assemble_seconds.labels(*self._labels)
        self._device = metrics.device_seconds.labels(*self._labels)
        self._encode = metrics.encode_seconds.labels(*self._labels)
        self._rows = metrics.batch_rows.labels(*self._labels)
        self._padding = metrics.padding_rows.labels(*self._labels)
        self.expired = metrics.shed.labels(model, "expired")
        self.cancelled = metrics.shed.labels(model, "cancelled")
        self.late = metrics.shed.labels(model, "deadline")
        self.large = metrics.shed.labels(model, "too_large")
        self.full = metrics.shed.labels(model, "queue_full")
        self.slow = metrics.shed.labels(model, "queue_slow")
        end = _midnight(window_ends)
        metrics.window_seconds.labels(*self._labels).set_function(lambda: end - time.time())
        self._writer = (jaxlib, *_window_days(jaxlib, window_ends))
        metrics.written_by.labels(*self._labels, *self._writer).set(1)

    @property
    def listened(self) -> bool:
        """Whether anybody is told of requests that end."""
        return bool(self._metrics.listeners)

    def launched(self, waited: Sequence[float], assembling: float) -> None:
        """A batch went to the device. waited: seconds in the queue, of each request that is new in it."""
        self._queue.observe_all(waited)
        self._assemble.observe(assembling)

    def ran(self, run: Run) -> None:
        """A batch is answered."""
        self._device.observe(run.fetched - run.launched)
        self._encode.observe(run.answered - run.fetched)
        self._rows.observe(run.rows)
        self._run_totals.add(run)
        if run.bucket > run.rows:
            self._padding.inc(run.bucket - run.rows)

    @property
    def padded(self) -> Callable[[float], None]:
        """Counts positions of sequences that are run for nothing."""
        return self._metrics.padding_positions.labels(*self._labels).inc

    def ended(
        self,
        works: Sequence[Work],
        signature: str,
        code: Code,
        at: float,
        run: Run | None = None,
        reason: str = "",
    ) -> None:
        """Requests that left the queue were answered together at time.monotonic() `at`. run: their last one."""
        for protocol in {work.protocol for work in works}:
            values = [at - work.call.received for work in works if work.protocol == protocol]
            self._request(protocol, code).observe_all(values)
        if self._metrics.listeners:
            describe = self._metrics.describe
            requests = [describe(w.call, w.protocol, w.started, w.rows) for w in works]
            self._metrics.tell(Ended(self.model, self._version, signature, code, reason, at, run, requests))

    def refused(self, call: Call, protocol: str, signature: str, code: Code, reason: str) -> None:
        """A request was answered before it was queued."""
        now = time.monotonic()
        self._request(protocol, code).observe(now - call.received)
        if self._metrics.listeners:
            requests = (self._metrics.describe(call, protocol),)
            self._metrics.tell(Ended(self.model, self._version, signature, code, reason, now, None, requests))

    def watch_depth(self, signature: str, depth: Callable[[], int]) -> None:
        """Reports the rows that wait for a signature, read when asked."""
        self._depths.append(signature)
        self._metrics.queue_depth.labels(*self._labels, signature).set_function(depth)

    def _request(self, protocol: str, code: Code) -> Histogram:
        key = (protocol, code)
        series = self._requests.get(key)
        if series is None:
            series = self._requests[key] = self._metrics.request_seconds.labels(
                *self._labels, protocol, code.name
            )
        return series

    def forget(self, successor: "VersionMetrics | None" = None) -> None:
        """Drops the gauges of a version that has gone; its counters stay, as counters must.

        successor: of the version that came in its place under the same number, whose gauges stay.
        """
        if successor is None:
            self._metrics.window_seconds.remove(*self._labels)
        if successor is None or successor._writer != self._writer:
            self._metrics.written_by.remove(*self._labels, *self._writer)
        for signature in self._depths:
            if successor is None or signature not in successor._depths:
                self._metrics.queue_depth.remove(*self._labels, signature)


def _window_days(jaxlib: str, window_ends: str) -> tuple[str, str]:
    """The first and the last day that a jaxlib may have been released on that is promised to read the program."""
    if not window_ends:
        return "", ""
    return window_of(jaxlib, window_ends).begins.isoformat(), window_ends


def _midnight(window_ends: str) -> float:
    """Seconds since the epoch of an ISO date, NaN when there is none."""
    if not window_ends:
        return float("nan")
    return datetime.combine(date.fromisoformat(window_ends[:10]), clock(), UTC).timestamp()


def _peer(call: Call) -> str:
    """Who asked. A proxy that asks by the unix socket appends its client's address; who may open that, is trusted."""
    if call.peer.startswith("unix:"):
        for key, value in call.metadata:
            if key == "x-forwarded-for" and isinstance(value, str):
                return value.rpartition(",")[2].strip()[:LONGEST_ADDRESS]
    return call.peer
