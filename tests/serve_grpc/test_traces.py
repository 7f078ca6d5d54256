"""Traces: what arrives at a collector, whose trace it belongs to, and what happens without one."""

import gzip
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from serve_grpc.errors import ConfigError
from serve_grpc.flags import trace_endpoint
from serve_grpc.trace_context import NO_TRACE, Sampler, Trace, trace_of
from tests.server_process import ROOT, ServerProcess, eventually, predict_call, request

X = {"x": np.ones((3, 4), np.float32)}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP/HTTP endpoint on loopback that keeps what it was sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.paths: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, message: ExportTraceServiceRequest) -> None:
        self.paths.add(path)
        for group in message.resource_spans:
            self.resources.append({a.key: a.value.string_value for a in group.resource.attributes})
            for scope in group.scope_spans:
                self.spans += scope.spans

    def trace(self, trace_id: str) -> dict[str, Span]:
        """Spans of a trace by name."""
        return {span.name: span for span in list(self.spans) if span.trace_id.hex() == trace_id}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def traced(one_model: Path, cache: Path, collector: Collector) -> Iterator[ServerProcess]:
    flags = (
        "--max-batch", "4", "--cache-dir", str(cache), "--transport", "grpcio",
        "--trace-endpoint", collector.url, "--trace-sample", "0",
    )  # fmt: skip
    with ServerProcess(one_model, *flags) as server:
        yield server.ready()


def facts(span: Span) -> dict[str, str | int]:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def test_a_traced_call_has_a_span_and_one_for_each_stage(traced: ServerProcess, collector: Collector) -> None:
    started = time.time_ns()
    call = predict_call(traced.channel)
    call(request("mlp", X), metadata=[("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "a=b")])
    eventually(lambda: len(collector.trace(TRACE)) == 5, "five spans")
    spans = collector.trace(TRACE)
    span = spans.pop("jaxport.v1.PredictionService/Predict")
    assert span.kind == Span.SPAN_KIND_SERVER
    assert span.parent_span_id.hex() == PARENT
    assert span.trace_state == "a=b"
    assert span.status.code == Status.STATUS_CODE_UNSET
    attributes = facts(span)
    wanted = {
        "rpc.system.name": "grpc",
        "rpc.method": "jaxport.v1.PredictionService/Predict",
        "rpc.response.status_code": "OK",
        "jaxport.model": "mlp",
        "jaxport.version": 1,
        "jaxport.signature": "predict",
        "jaxport.protocol": "jaxport.v1",
        "jaxport.rows": 3,
    }
    assert {key: attributes[key] for key in wanted} == wanted
    assert "127.0.0.1" in str(attributes["network.peer.address"])
    assert list(spans) == ["queue", "assemble", "device", "encode"]
    end = span.start_time_unix_nano
    for stage in spans.values():
        assert stage.parent_span_id == span.span_id
        assert abs(stage.start_time_unix_nano - end) < 1e6
        end = stage.end_time_unix_nano
    assert abs(end - span.end_time_unix_nano) < 1e6
    assert started <= span.start_time_unix_nano + 1e6
    assert span.end_time_unix_nano <= time.time_ns() + 1e6
    assert facts(spans["device"])["jaxport.batch.rows"] == 3
    assert facts(spans["device"])["jaxport.batch.bucket"] >= 3
    assert collector.resources[0]["service.name"] == "jaxport"
    assert collector.paths == {"/v1/traces"}


def test_a_refused_call_says_so_and_an_unsampled_one_says_nothing(
    traced: ServerProcess, collector: Collector
) -> None:
    refused, quiet = "1" * 32, "2" * 32
    call = predict_call(traced.channel)
    call(request("mlp", X), metadata=[("traceparent", f"00-{quiet}-{PARENT}-00")])
    call(request("mlp", X))
    with pytest.raises(grpc.RpcError):
        call(request("nobody", X), metadata=[("traceparent", f"00-{refused}-{PARENT}-01")])
    eventually(lambda: bool(collector.trace(refused)), "the refused call's span")
    (span,) = collector.trace(refused).values()
    assert facts(span)["error.type"] == facts(span)["rpc.response.status_code"] == "NOT_FOUND"
    assert span.status.code == Status.STATUS_CODE_UNSET  # the caller's mistake, not the server's
    assert not collector.trace(quiet)
    assert {each.trace_id.hex() for each in collector.spans} <= {TRACE, refused}
    assert traced.metric("jaxport_traces_lost_total") == 0


def test_neither_a_lost_collector_nor_a_full_disk_hurts_serving(one_model: Path, cache: Path) -> None:
    collector = Collector()
    flags = (
        "--max-batch", "4", "--cache-dir", str(cache), "--access-log", "/dev/full",
        "--trace-endpoint", f"{collector.url}/v1/traces", "--trace-sample", "1",
    )  # fmt: skip
    with ServerProcess(one_model, *flags) as server:
        server.ready()
        server.predict("mlp", X)
        eventually(lambda: len(collector.spans) == 5, "the spans of a request that began a trace")
        collector.close()
        server.predict("mlp", X)
        eventually(lambda: server.metric("jaxport_traces_lost_total") == 1, "a lost trace")
        server.predict("mlp", X)
        server.signal()
        assert server.wait(20) == 0
        assert sum("traces are lost" in line for line in server.lines) == 1
        assert sum("access log /dev/full cannot be written" in line for line in server.lines) == 1
        assert "Traceback" not in "".join(server.lines)


def test_without_opentelemetry_the_flag_names_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        f"sys.argv = ['serve', '--models', {str(tmp_path)!r}, '--trace-endpoint', 'http://localhost:4318']\n"
        "from serve_grpc.__main__ import main\n"
        "sys.exit(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert ran.returncode == 2
    assert ran.stderr.strip().splitlines()[-1].startswith("error: --trace-endpoint http://localhost:4318")
    assert "jaxport[otel]" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-01" + "-x" * 500,
        b"00",
    ],
)
def test_a_malformed_traceparent_is_as_none(value: str | bytes) -> None:
    assert trace_of([("traceparent", value)]) == NO_TRACE


def test_the_caller_decides_and_else_the_ratio() -> None:
    assert trace_of([("a", "b")]) == NO_TRACE
    given = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "a=1"), ("tracestate", "b=2")]
    assert Sampler(0.0)(given) == Trace(TRACE, PARENT, True, "a=1,b=2")
    assert not Sampler(1.0)([("traceparent", f"00-{TRACE}-{PARENT}-00")]).sampled
    assert trace_of([("traceparent", f"cc-{TRACE}-{PARENT}-01-later")]).trace_id == TRACE
    assert Sampler(0.0)([]) == NO_TRACE
    begun = Sampler(1.0)([])
    assert begun.sampled
    assert not begun.parent_id
    assert len(begun.trace_id) == 32


def test_the_endpoint_comes_from_the_flag_or_the_standard_variables() -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}
    exact = {**base, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1/x"}
    assert trace_endpoint(None, {}) is None
    assert trace_endpoint(None, base) == "http://c:4318/v1/traces"
    assert trace_endpoint(None, exact) == "http://t:1/x"
    assert trace_endpoint(None, {**base, "OTEL_SDK_DISABLED": "true"}) is None
    assert trace_endpoint("", base) is None
    assert trace_endpoint("https://d:2", base) == "https://d:2/v1/traces"
    assert trace_endpoint("https://d:2/own/path", base) == "https://d:2/own/path"
    for wrong in ("d:2", "ftp://d", "http://", "http://d:99999"):
        with pytest.raises(ConfigError, match="--trace-endpoint"):
            trace_endpoint(wrong, {})
