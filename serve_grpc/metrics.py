"""What Prometheus can ask: a histogram per stage, and counters of what must not happen. Names begin with jaxport_."""

import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from datetime import time as clock

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from serve_grpc.errors import Code

SECONDS = (
    50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.5e-3, 3e-3, 6e-3, 12e-3, 25e-3, 50e-3, 0.1, 0.2, 0.5, 1, 2, 5, 15
)  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
VERSION = ("model", "version")


class Metrics:
    """All series of one server, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second series for every one, with its time of birth
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.request_seconds = self._histogram(
            "jaxport_request_seconds", "Accepted to answered", (*VERSION, "protocol", "status")
        )
        self.queue_seconds = self._histogram("jaxport_queue_seconds", "Accepted to leaving the queue")
        self.assemble_seconds = self._histogram("jaxport_assemble_seconds", "Copying rows into a bucket")
        self.device_seconds = self._histogram("jaxport_device_seconds", "One run of a bucket, to its results")
        self.batch_rows = self._histogram("jaxport_batch_rows", "Rows of a run, padding aside", buckets=ROWS)
        self.padding_rows = self._counter("jaxport_padding_rows", "Rows run for nothing", VERSION)
        self.queue_depth = self._gauge("jaxport_queue_depth", "Rows that wait", (*VERSION, "signature"))
        self.window_seconds = self._gauge(
            "jaxport_bundle_window_seconds", "Until a newer jaxlib may refuse the program", VERSION
        )
        self.shed = self._counter("jaxport_shed", "Requests answered without a run", ("model", "reason"))
        self.swap_seconds = self._histogram(
            "jaxport_swap_seconds", "Version seen to version serving", ("model",)
        )
        self.load_failures = self._counter("jaxport_load_failures", "Versions that were refused", ("model",))
        self.cache_misses = self._counter(
            "jaxport_compile_cache_misses", "Compiles the cache did not have", ()
        )
        self.compiles_after_ready = self._counter(
            "jaxport_compiles_after_ready", "Traces and compiles by a request: a fault", ()
        )

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self.registry)

    def _histogram(
        self, name: str, help: str, labels: tuple = VERSION, buckets: tuple = SECONDS
    ) -> Histogram:
        return Histogram(name, help, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, help: str, labels: tuple) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str, labels: tuple) -> Gauge:
        return Gauge(name, help, labels, registry=self.registry)


class VersionMetrics:
    """The series of one loaded version, bound to their labels once: looking labels up costs more than observing."""

    def __init__(self, metrics: Metrics, model: str, version: int, window_ends: str) -> None:
        self._metrics = metrics
        self._labels = (model, str(version))
        self._requests: dict[tuple[str, Code], Histogram] = {}
        self._depths: list[str] = []
        self.queue = metrics.queue_seconds.labels(*self._labels)
        self.assemble = metrics.assemble_seconds.labels(*self._labels)
        self.device = metrics.device_seconds.labels(*self._labels)
        self.rows = metrics.batch_rows.labels(*self._labels)
        self.padding = metrics.padding_rows.labels(*self._labels)
        self.expired = metrics.shed.labels(model, "expired")
        self.cancelled = metrics.shed.labels(model, "cancelled")
        self.full = metrics.shed.labels(model, "queue_full")
        end = _midnight(window_ends)
        metrics.window_seconds.labels(*self._labels).set_function(lambda: end - time.time())

    def watch_depth(self, signature: str, depth: Callable[[], int]) -> None:
        """Reports the rows that wait for a signature, read when asked."""
        self._depths.append(signature)
        self._metrics.queue_depth.labels(*self._labels, signature).set_function(depth)

    def request(self, protocol: str, code: Code) -> Histogram:
        """The latency series of one protocol and status."""
        key = (protocol, code)
        series = self._requests.get(key)
        if series is None:
            series = self._requests[key] = self._metrics.request_seconds.labels(
                *self._labels, protocol, code.name
            )
        return series

    def forget(self) -> None:
        """Drops the gauges of a version that has gone; its counters stay, as counters must."""
        self._metrics.window_seconds.remove(*self._labels)
        for signature in self._depths:
            self._metrics.queue_depth.remove(*self._labels, signature)


def _midnight(window_ends: str) -> float:
    """Seconds since the epoch of an ISO date, NaN when there is none."""
    if not window_ends:
        return float("nan")
    return datetime.combine(date.fromisoformat(window_ends[:10]), clock(), UTC).timestamp()
