"""Spans of sampled requests to an OpenTelemetry collector, over OTLP/HTTP.

A request's times are all known when it has ended, so its spans are made then, by a thread of their own: a request that
is not sampled costs a look at its metadata, and a server without --trace-endpoint nothing.
Names follow OpenTelemetry's semantic conventions for RPC and HTTP; what they do not have begins with `jaxport.`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version as package_version
from typing import Any

from serve_grpc.backlog import Backlog
from serve_grpc.ended import Ended, Request
from serve_grpc.errors import Code, ConfigError
from serve_grpc.rest import HTTP_STATUS

log = logging.getLogger(__name__)

MOST_WAITING = 10_000  # requests
MOST_SPANS = 1_000  # of one message to the collector
SEND_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
# Codes that are the server's doing; for the others a server's span is not an error (semantic conventions, gRPC).
SERVER_ERRORS = {Code.DEADLINE_EXCEEDED, Code.INTERNAL, Code.UNAVAILABLE}
LONGEST_NAME = 200


def check_installed(asked_by: str) -> None:
    """Raises ConfigError where OpenTelemetry is missing; `asked_by`: the flag or variable to name."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"{asked_by} needs OpenTelemetry, which is not installed; install jaxport[otel], or leave it out"
        ) from None


class Traces:
    """endpoint: the full URL that takes OTLP traces. lost: told how many requests' spans did not get there."""

    def __init__(self, endpoint: str, lost: Callable[[int], None]) -> None:
        self._backlog = Backlog(MOST_WAITING, lost)
        self._exporter = _Exporter(endpoint, lost)
        self._spans = _Spans()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Sends from now on."""
        self._thread.start()

    def ended(self, ended: Ended) -> None:
        """The listener: keeps the requests that are sampled."""
        sampled = [request for request in ended.requests if request.trace.sampled]
        if sampled:
            self._backlog.put(ended._replace(requests=sampled))

    def stop(self, timeout: float) -> None:
        """Sends what waits, for at most `timeout` seconds."""
        self._stopping.set()
        self._thread.join(timeout)
        self._exporter.stop()

    def _run(self) -> None:
        while not self._stopping.wait(SEND_SECONDS):
            self._send()
        self._send()

    def _send(self) -> None:
        spans: list[Any] = []
        requests = 0
        for ended in self._backlog.take():
            for request in ended.requests:
                spans += self._spans.of(ended, request)
                requests += 1
                if len(spans) >= MOST_SPANS:
                    self._exporter.send(spans, requests)
                    spans, requests = [], 0
        if spans:
            self._exporter.send(spans, requests)


class _Spans:
    """Spans by OpenTelemetry's SDK, imported where traces are asked for only. One thread."""

    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider, sampling

        self._api = trace
        self._ids = _ids()
        self._ended = _collector()
        provider = TracerProvider(
            # Resource.create reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which win.
            resource=Resource.create(
                {"service.name": "jaxport", "service.version": package_version("jaxport")}
            ),
            sampler=sampling.ALWAYS_ON,
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("jaxport.serve_grpc")

    def of(self, ended: Ended, request: Request) -> list[Any]:
        """The span of a request and those of its stages, ended."""
        offset = time.time_ns() - time.monotonic_ns()

        def wall(monotonic: float) -> int:
            return offset + int(monotonic * 1e9)

        name, attributes = _described(ended, request)
        self._ids.trace_id = int(request.trace.trace_id, 16)
        span = self._tracer.start_span(
            name,
            context=self._parent(request),
            kind=self._api.SpanKind.SERVER,
            attributes=attributes,
            start_time=wall(request.received),
        )
        if ended.code in SERVER_ERRORS:
            span.set_status(self._api.StatusCode.ERROR, ended.reason)
        within = self._api.set_span_in_context(span)
        for stage, start, stop, facts in _stages(ended, request):
            child = self._tracer.start_span(stage, context=within, attributes=facts, start_time=wall(start))
            child.end(wall(stop))
        span.end(wall(ended.at))
        return self._ended.take()

    def _parent(self, request: Request) -> Any:
        """The caller's span as context, or an empty one: then the request's is a root."""
        from opentelemetry.context import Context

        given, api = request.trace, self._api
        if not given.parent_id:
            return Context()
        parent = api.SpanContext(
            int(given.trace_id, 16),
            int(given.parent_id, 16),
            is_remote=True,
            trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
            trace_state=api.TraceState.from_header([given.state]) if given.state else None,
        )
        return api.set_span_in_context(api.NonRecordingSpan(parent), Context())


def _ids() -> Any:
    """Span ids at random; the trace id of a root is the one that its request was given when it was sampled."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        trace_id = 0

        def generate_trace_id(self) -> int:
            return self.trace_id

    return Ids()


def _collector() -> Any:
    """Keeps what ended until it is taken. The SDK's own processors send from a thread and lose spans uncounted."""
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

    class Collector(SpanProcessor):
        def __init__(self) -> None:
            self._spans: list[ReadableSpan] = []

        def on_end(self, span: ReadableSpan) -> None:
            self._spans.append(span)

        def take(self) -> list[ReadableSpan]:
            taken, self._spans = self._spans, []
            return taken

    return Collector()


class _Exporter:
    """OTLP/HTTP, with a word when the collector stops taking spans and when it takes them again."""

    def __init__(self, endpoint: str, lost: Callable[[int], None]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        # The exporter says it for each batch, and again for each retry.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._endpoint = endpoint
        self._lost = lost
        self._otlp = OTLPSpanExporter(endpoint, timeout=TIMEOUT_SECONDS)
        self._success = SpanExportResult.SUCCESS
        self._failing = False

    def send(self, spans: Sequence[Any], requests: int) -> None:
        """Sends, retries within TIMEOUT_SECONDS, or loses them."""
        failed = self._otlp.export(spans) is not self._success
        if failed:
            self._lost(requests)
        if failed and not self._failing:
            log.warning("traces are lost: %s does not take them; serving goes on", self._endpoint)
        elif self._failing and not failed:
            log.info("traces are taken by %s again", self._endpoint)
        self._failing = failed

    def stop(self) -> None:
        """Ends a retry that is under way."""
        self._otlp.shutdown()


def _described(ended: Ended, request: Request) -> tuple[str, dict[str, Any]]:
    """Name and attributes of a request's span."""
    status = ended.code.name
    facts: dict[str, Any] = {
        "jaxport.model": ended.model[:LONGEST_NAME],
        "jaxport.signature": ended.signature[:LONGEST_NAME],
        "jaxport.protocol": request.protocol,
        "jaxport.rows": request.rows,
    }
    if ended.version:
        facts["jaxport.version"] = ended.version
    if request.peer:
        facts["network.peer.address"] = request.peer
    if ended.code is not Code.OK:
        facts["error.type"] = status
    if request.method.startswith("/v1/"):
        verb = "POST" if request.method.endswith(":predict") else "GET"
        facts |= {"http.request.method": verb, "http.route": request.method}
        facts["http.response.status_code"] = HTTP_STATUS[ended.code]
        return f"{verb} {request.method}", facts
    method = request.method.removeprefix("/")
    return method, {
        "rpc.system.name": "grpc",
        "rpc.method": method,
        "rpc.response.status_code": status,
        **facts,
    }


def _stages(ended: Ended, request: Request) -> list[tuple[str, float, float, Mapping[str, Any]]]:
    """(name, start, stop, attributes) in order. What never left the queue was in it until it ended."""
    run = ended.run
    if run is None:
        return [("queue", request.received, request.started or ended.at, {})] if request.rows else []
    batch = {"jaxport.batch.rows": run.rows, "jaxport.batch.bucket": run.bucket}
    return [
        ("queue", request.received, request.started, {}),
        ("assemble", run.started, run.launched, {}),
        ("device", run.launched, run.fetched, batch),
        ("encode", run.fetched, run.answered, {}),
    ]
