"""Deadlines, connection age, and what clients that behave badly may do to others: nothing."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import h2.events
import h2.exceptions
import h2.settings
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hyperframe.frame import ContinuationFrame, HeadersFrame

from tests.front.conftest import NewProxy
from tests.front.load import working
from tests.front.proxy import Proxy
from tests.http2 import RawClient, message
from tests.server_process import SERVICE, ServerProcess, request

PREDICT = f"{SERVICE}Predict"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ONE = message(request("echo", {"x": np.ones((1, 2), np.float32)}).SerializeToString())
SLOW = message(request("slow", {"x": np.ones((1, 1), np.float32)}).SerializeToString())
OK, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 0, 4, 8
MIB = 1 << 20
LONGEST = "max_stream_duration: 60s, grpc_timeout_header_max: 60s"


@pytest.fixture(scope="module")
def hasty(new_proxy: NewProxy) -> Iterator[Proxy]:
    """All times are short: a call has half a second, a connection lives for one."""
    changed = {
        LONGEST: "max_stream_duration: 0.5s, grpc_timeout_header_max: 0.5s",
        "max_connection_duration: 300s": "max_connection_duration: 1s",
        "drain_timeout: 5s": "drain_timeout: 0.5s",
    }
    with new_proxy(changed=changed) as envoy:
        yield envoy


# Deadlines. A client's own clock is not asked: it reads what the proxy says.


def test_a_deadline_shorter_than_the_work_is_kept(proxy: Proxy) -> None:
    with RawClient(proxy.grpc) as client:
        stream = client.begin(PREDICT, ("grpc-timeout", "20m"))
        client.send(stream, SLOW, end=True)
        assert client.status(stream) == DEADLINE_EXCEEDED


def test_a_deadline_covers_a_request_that_does_not_come(proxy: Proxy) -> None:
    with RawClient(proxy.grpc) as client:
        begun = time.monotonic()
        stream = client.begin(PREDICT, ("grpc-timeout", "300m"))
        assert client.status(stream) == DEADLINE_EXCEEDED
        assert time.monotonic() - begun > 0.25
        assert client.headers(stream)["grpc-message"].startswith("the deadline passed before the answer")


@pytest.mark.parametrize("timeout", [None, "99999999H", "abc"], ids=["none", "absurd", "no number"])
def test_no_call_is_longer_than_the_longest(hasty: Proxy, timeout: str | None) -> None:
    with RawClient(hasty.grpc) as client:
        begun = time.monotonic()
        stream = client.begin(PREDICT, *([] if timeout is None else [("grpc-timeout", timeout)]))
        assert client.status(stream) == DEADLINE_EXCEEDED
        assert time.monotonic() - begun > 0.4


@pytest.mark.parametrize("timeout", ["99999999H", "abc", "20S"])
def test_a_strange_deadline_does_not_keep_work_from_its_answer(proxy: Proxy, timeout: str) -> None:
    with RawClient(proxy.grpc) as client:
        stream = client.begin(PREDICT, ("grpc-timeout", timeout))
        client.send(stream, SLOW, end=True)
        assert client.status(stream) == OK


# Connection age.


def test_connections_are_renewed_under_load_and_no_call_fails(hasty: Proxy) -> None:
    before = hasty.stat("http.grpc.downstream_cx_max_duration_reached")
    with working(*(hasty.channel() for _ in range(3))) as workers:
        time.sleep(4)
    assert [worker.failed for worker in workers] == [{}, {}, {}]
    assert min(worker.outcomes["OK"] for worker in workers) > 50
    assert hasty.stat("http.grpc.downstream_cx_max_duration_reached") >= before + 3


def test_a_watch_outlives_the_longest_call_and_the_age_of_its_connection(hasty: Proxy) -> None:
    watched = health_pb2_grpc.HealthStub(hasty.channel()).Watch(health_pb2.HealthCheckRequest())
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    time.sleep(3)
    assert watched.is_active()
    watched.cancel()


# Clients that are silent.


@pytest.fixture(scope="module")
def impatient(new_proxy: NewProxy) -> Iterator[Proxy]:
    """Asks connections whether they live twice a second, and waits a second for what a call does not send or take."""
    changed = {
        "connection_keepalive: {interval: 60s, timeout: 20s}": "connection_keepalive: {interval: 0.5s, timeout: 0.5s}",
        "stream_flush_timeout: 60s": "stream_flush_timeout: 1s",
        "idle_timeout: 3600s, host_rewrite": "idle_timeout: 1s, host_rewrite",
        "idle_timeout: 300s": "idle_timeout: 1s",
        LONGEST: LONGEST.replace("60s", "4s"),
    }
    with new_proxy(changed=changed) as envoy:
        yield envoy


def test_a_connection_whose_client_is_gone_is_closed(impatient: Proxy) -> None:
    with RawClient(impatient.grpc) as silent, RawClient(impatient.grpc) as living:
        for _ in range(40):
            assert living.read(0.05)
        assert not all(silent.read(0.2) for _ in range(10))
        assert living.read()


@pytest.mark.parametrize("path", [STREAM, REFLECTION])
def test_a_stream_on_which_nothing_comes_is_ended(impatient: Proxy, path: str) -> None:
    with RawClient(impatient.grpc) as client:
        stream = client.begin(path)
        client.status(stream)
        assert client.headers(stream)["grpc-message"].startswith("nothing came or went for too long")


@pytest.mark.parametrize("slowly", [False, True])
def test_headers_that_do_not_come_whole_end_the_connection(impatient: Proxy, slowly: bool) -> None:
    with RawClient(impatient.grpc) as client:
        client.socket.sendall(HeadersFrame(1, b"\x83", flags=["END_STREAM"]).serialize())
        begun = time.monotonic()
        while time.monotonic() < begun + 5 and not _closed(client, 0.2):
            if slowly:
                with contextlib.suppress(ConnectionError):
                    client.socket.sendall(ContinuationFrame(1, b"\x86").serialize())
        assert 0.5 < time.monotonic() - begun < 4


def _closed(client: RawClient, seconds: float) -> bool:
    """Whether the proxy has closed. What it sends is not answered, pings among it."""
    client.socket.settimeout(seconds)
    try:
        return not client.socket.recv(65536)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(("rows", "seconds"), [(1, 1), (190_000, 4)], ids=["small", "beyond the buffers"])
def test_an_answer_that_is_not_taken_is_dropped(impatient: Proxy, rows: int, seconds: float) -> None:
    """The client opens no window for it: of what fits in the proxy, and of one and a half MiB, of which a part stays in the server."""
    asked = message(request("echo", {"x": np.ones((rows, 2), np.float32)}).SerializeToString())
    with RawClient(impatient.grpc) as client:
        client.http2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        client.flush()
        stream = client.begin(PREDICT)
        assert client.send(stream, asked, end=True) == len(asked)
        begun = time.monotonic()
        while not client.ended(stream) and time.monotonic() < begun + 10:
            assert client.read()
        assert 0.5 < time.monotonic() - begun < seconds + 2
        assert any(isinstance(event, h2.events.StreamReset) for event in client.events)
        assert not any(isinstance(event, h2.events.DataReceived) for event in client.events)


def test_a_connection_is_told_how_many_calls_it_may_have_at_once(proxy: Proxy) -> None:
    with RawClient(proxy.grpc) as client:
        client.read(5)
        assert client.http2.remote_settings.max_concurrent_streams == 256


# Clients that behave badly.


def test_a_burst_of_cancels_fails_nobody_else_s_call(proxy: Proxy) -> None:
    """3,000 calls that are cancelled once they are whole, and so have reached the server."""
    with working(proxy.channel(), proxy.channel()) as workers:
        cancelled = sum(_cancelled(proxy.grpc, 200) for _ in range(15))
    assert cancelled == 3000
    assert [worker.failed for worker in workers] == [{}, {}]
    assert min(worker.outcomes["OK"] for worker in workers) > 50


def _cancelled(address: str, calls: int) -> int:
    """Cancels so many calls on a connection of their own; how many it took."""
    with RawClient(address) as client:
        for begun in range(calls):
            try:
                stream = client.begin(PREDICT)
                client.http2.send_data(stream, SLOW if begun % 2 else ONE, end_stream=True)
                client.http2.reset_stream(stream, error_code=8)
                client.flush()
            except (ConnectionError, h2.exceptions.ProtocolError):  # closed
                return begun
            if not client.read(0):
                return begun
        client.read(0.1)
        return calls


def test_a_connection_of_nothing_but_cancels_is_closed(proxy: Proxy) -> None:
    assert 200 < _cancelled(proxy.grpc, 5000) < 5000


def test_slow_senders_meet_the_limit_of_the_heap_and_others_are_served(new_proxy: NewProxy) -> None:
    """40 requests of 8 MiB that stop before the end would take 280 MiB of a heap of 128."""
    with new_proxy(changed={"max_heap_size_bytes: 1073741824": f"max_heap_size_bytes: {128 * MIB}"}) as envoy:
        before = _resident(envoy.pid)
        with working(envoy.channel(), pause=0.02) as (worker,), contextlib.ExitStack() as senders:
            clients = [senders.enter_context(RawClient(envoy.grpc)) for _ in range(40)]
            for client in clients:
                stream = client.begin(PREDICT)
                client.send(stream, message(bytes(8 * MIB))[: 7 * MIB], end=False, seconds=2)
                time.sleep(0.05)  # the heap is looked at ten times a second
            assert _resident(envoy.pid) - before < 160 * MIB
            for client in clients:
                client.read(0.02)
            reset = sum(client.ended(1) for client in clients)
            served = worker.outcomes["OK"]
            time.sleep(1)
            assert worker.outcomes["OK"] > served + 10
        assert 10 <= reset < 40
        assert not worker.failed


def _resident(pid: int) -> int:
    """Bytes in memory."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def test_connections_beyond_the_cap_are_closed_and_the_others_served(new_proxy: NewProxy) -> None:
    cap = {"max_active_downstream_connections: 1000": "max_active_downstream_connections: 3"}
    with new_proxy(changed=cap) as envoy, contextlib.ExitStack() as open_ones:
        first = [open_ones.enter_context(RawClient(envoy.grpc)) for _ in range(3)]
        for client in first:
            client.read()
        with RawClient(envoy.grpc) as fourth:
            assert not fourth.read(2)
        series = envoy.probe("/metrics")[1]
        assert re.search(
            r"envoy_listener_downstream_global_cx_overflow\{[^}]*_0\"\} 1$", series, re.MULTILINE
        )
        for client in first:
            stream = client.begin(PREDICT)
            client.send(stream, ONE, end=True)
            assert client.status(stream) == OK
        assert envoy.probe()[0] == 200  # whatever clients do, kubelet is answered


def test_requests_beyond_the_cap_are_refused_at_once(new_proxy: NewProxy) -> None:
    with (
        new_proxy(changed={"max_requests: 16384": "max_requests: 1"}) as envoy,
        RawClient(envoy.grpc) as client,
    ):
        streams = [client.begin(PREDICT) for _ in range(4)]
        for stream in streams:
            client.send(stream, SLOW, end=True)
        answers = [client.status(stream) for stream in streams]
        assert set(answers) == {OK, RESOURCE_EXHAUSTED} and answers.count(OK) < 3
        refused = client.headers(streams[answers.index(RESOURCE_EXHAUSTED)])
        assert refused["grpc-message"].startswith("the proxy before the server is full")


def test_the_largest_and_the_smallest_window_share_a_connection(proxy: Proxy) -> None:
    """A client that does not read its large answer keeps its own waiting, and nobody else's."""
    with RawClient(proxy.grpc) as client, working(proxy.channel()) as (worker,):
        stream = client.begin(PREDICT)
        client.send(
            stream,
            message(request("tokens", {"tokens": np.zeros((20_000, 8), np.int32)}).SerializeToString()),
            end=True,
        )
        time.sleep(1)
        assert not any(isinstance(event, h2.events.StreamEnded) for event in client.events)
    assert not worker.failed and worker.outcomes["OK"] > 50


def test_the_http_port_is_no_way_around_the_front(server: ServerProcess) -> None:
    assert [server.get(path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
    status, body = server.get("/v1/models/echo")
    assert status == 403 and "--no-http-predict" in body
