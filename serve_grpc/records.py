"""What is written down of each request: the access log and traces, where they are asked for."""

import time

from serve_grpc.access_log import AccessLog
from serve_grpc.metrics import Metrics
from serve_grpc.settings import RecordSettings
from serve_grpc.trace_context import Sampler
from serve_grpc.traces import Traces


class Records:
    """Listens to `metrics`. Raises ConfigError or EnvironmentUnfit for a log that cannot be opened."""

    def __init__(self, settings: RecordSettings, metrics: Metrics) -> None:
        self._writers: list[AccessLog | Traces] = []
        if settings.access_log is not None:
            self._writers.append(AccessLog(settings.access_log, metrics.access_log_lost.inc))
        if settings.trace_endpoint is not None:
            self._writers.append(Traces(settings.trace_endpoint, metrics.traces_lost.inc))
            metrics.trace_of = Sampler(settings.trace_sample)
        metrics.listeners = tuple(writer.ended for writer in self._writers)

    def start(self) -> None:
        """Writes from now on."""
        for writer in self._writers:
            writer.start()

    def stop(self, timeout: float) -> None:
        """Writes what is left, for at most `timeout` seconds. No request may end any more."""
        end = time.monotonic() + timeout
        for writer in self._writers:
            writer.stop(max(0.0, end - time.monotonic()))
