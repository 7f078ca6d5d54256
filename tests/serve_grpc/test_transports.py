"""What a transport must not let through, on both; and where they differ, so that a new release shows what changed."""

import gzip
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.http2 import RawClient, message
from tests.server_process import SERVICE, ServerProcess, connect, eventually, predict_call, request

X = np.ones((1, 4), np.float32)
MIB = 2**20
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


@pytest.fixture(scope="module")
def running(one_model: Path, cache: Path, transport: str) -> Iterator[ServerProcess]:
    """A server with one small model and a limit of 4 MiB; idle in the end, it ends at once on a signal."""
    flags = ("--transport", transport, "--max-message-bytes", "4MiB", "--cache-dir", str(cache))
    flags += ("--grace-seconds", "60")
    with ServerProcess(
        one_model, *flags, "--max-batch", "4", "--max-queue", "1000000", "--max-latency", "60000"
    ) as process:
        yield process.ready()
        assert process.alive
        assert process.metric("jaxport_compiles_after_ready_total") == 0
        process.signal()
        assert process.wait(50) == 0, "before its grace is over"


def answers(server: ServerProcess) -> None:
    """It serves somebody who has done nothing wrong."""
    with connect(server.grpc) as channel:
        assert predict_call(channel)(request("mlp", {"x": X}), timeout=10).outputs[0].name == "logits"


def test_the_log_says_which_transport_and_why(running: ServerProcess, transport: str) -> None:
    assert running.line(rf"listening .* transport={transport} because='asked for'")


def test_b1_a_message_over_the_limit_is_refused(running: ServerProcess, transport: str) -> None:
    """grpcio refuses when it has read the length; native holds the whole message first, which is why it stays inside."""
    with RawClient(running.grpc) as client:
        stream = client.begin(f"{SERVICE}Predict")
        body = message(bytes(64 * MIB))
        sent = client.send(stream, body, end=True)
        assert client.status(stream) == RESOURCE_EXHAUSTED
        assert (sent == len(body)) is (transport == "native")
    answers(running)


def test_b2_a_compressed_message_counts_at_its_full_size(running: ServerProcess) -> None:
    with RawClient(running.grpc) as client:
        stream = client.begin(f"{SERVICE}Predict", ("grpc-encoding", "gzip"))
        client.send(stream, message(gzip.compress(bytes(32 * MIB)), compressed=True), end=True)
        assert client.status(stream) == RESOURCE_EXHAUSTED
    answers(running)


def test_b2_a_compressed_message_within_the_limit_is_read(running: ServerProcess) -> None:
    with connect(running.grpc) as channel:
        call = predict_call(channel)
        answer = call(request("mlp", {"x": X}), timeout=10, compression=grpc.Compression.Gzip)
    assert answer.version == 1


def test_b3_a_target_of_several_addresses(running: ServerProcess, transport: str) -> None:
    """Its name is no authority in the sense of RFC 3986; native refuses that, unless the client sets another."""
    port = running.grpc.rpartition(":")[2]
    target = f"ipv4:127.0.0.1:{port},127.0.0.1:{port}"
    with grpc.insecure_channel(target) as channel:
        call = predict_call(channel).future(request("mlp", {"x": X}), timeout=10)
        assert (call.exception() is None) is (transport == "grpcio")
    with grpc.insecure_channel(target, [("grpc.default_authority", "localhost")]) as channel:
        assert predict_call(channel)(request("mlp", {"x": X}), timeout=10).version == 1


def test_b4_what_was_accepted_is_sent_before_the_end_and_nothing_else_is_waited_for(
    one_model: Path, cache: Path, transport: str
) -> None:
    """Neither a stream that its caller leaves open nor a call that never comes whole holds up the exit."""
    flags = ("--transport", transport, "--cache-dir", str(cache), "--max-batch", "4")
    flags += ("--max-queue", "1000000", "--max-latency", "60000", "--grace-seconds", "60")
    with ServerProcess(one_model, *flags) as server, RawClient(server.ready().grpc) as client:
        half = client.begin(f"{SERVICE}Predict")
        client.send(half, message(bytes(1000))[:500], end=False)
        hold = threading.Event()

        def requests() -> Iterator[bytes]:
            hold.wait(90)
            yield from ()

        method = server.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        stream = method(requests())
        call = predict_call(server.channel)
        rows = np.ones((3_000, 4), np.float32)  # long enough to be running when the signal comes
        pending = [call.future(request("mlp", {"x": rows}), timeout=60) for _ in range(4)]
        eventually(lambda: server.metric("jaxport_queue_depth") > 0, "it works on them")
        server.signal()
        assert [len(answer.result().outputs[0].data) for answer in pending] == [3_000 * 3 * 4] * 4
        assert server.wait(50) == 0, "before its grace is over"
        assert server.line(r"stopped accepted=4 unanswered=0")
        hold.set()
        assert list(stream) == []


def test_b5_b6_a_server_whose_models_load_ends_at_once_on_a_signal(
    models: Path, cache: Path, transport: str
) -> None:
    """And the timer that would end it after its grace is no reason to stay."""
    flags = ("--transport", transport, "--cache-dir", str(cache), "--max-batch", "2", "--grace-seconds", "60")
    with ServerProcess(models, *flags) as server:
        server.listening()
        server.signal()
        assert server.wait(50) == 0, "before its grace is over"


def test_b7_a_call_that_is_dead_on_arrival_is_not_run(running: ServerProcess) -> None:
    """Without a run: neither a deadline that has passed nor a caller that has gone costs the device anything.

    Sixteen of them: native closes a connection on which more than twenty have gone before it could look at them.
    """
    rows = np.ones((20_000, 4), np.float32)
    call = predict_call(running.channel)
    busy = call.future(request("mlp", {"x": rows}), timeout=30)
    eventually(lambda: running.metric("jaxport_queue_depth") > 0, "the device is busy")
    before = running.metric("jaxport_batch_rows_sum") + running.metric("jaxport_queue_depth")
    late = [call.future(request("mlp", {"x": X}), timeout=0.001) for _ in range(8)]
    gone = [call.future(request("mlp", {"x": X}), timeout=30) for _ in range(8)]
    for future in gone:
        future.cancel()
    assert {future.code() for future in late} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert busy.result().version == 1
    eventually(lambda: running.metric("jaxport_queue_depth") == 0, "the queue is empty")
    assert running.metric("jaxport_batch_rows_sum") - before <= 20_000


def test_b8_a_burst_of_cancels_hurts_nobody_else(running: ServerProcess) -> None:
    """native closes the connection of whoever cancels thousands; others on theirs do not notice."""
    failed: list[grpc.StatusCode] = []
    stop = threading.Event()

    def ask() -> None:
        with connect(running.grpc) as channel:
            call = predict_call(channel)
            while not stop.is_set():
                try:
                    call(request("mlp", {"x": X}), timeout=10)
                except grpc.RpcError as error:
                    failed.append(error.code())

    other = threading.Thread(target=ask)
    other.start()
    with grpc.insecure_channel(running.grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = predict_call(channel)
        for _ in range(3000):
            call.future(request("mlp", {"x": X}), timeout=10).cancel()
    stop.set()
    other.join()
    assert failed == []
    answers(running)


def test_b9_the_packages_own_aio_server_cannot_be_imported_by_name() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from pygrpc_native import aio"], capture_output=True, text=True, check=False
    )
    assert "RecursionError" in found.stderr, "a new release: the note in native.py can go"


def test_connections_of_grpcio_are_told_to_connect_anew(one_model: Path, cache: Path) -> None:
    flags = ("--transport", "grpcio", "--cache-dir", str(cache), "--max-connection-age", "1")
    with ServerProcess(one_model, *flags) as server, RawClient(server.ready().grpc) as client:
        until = time.monotonic() + 15
        while client.read(0.2):  # grpc says GOAWAY and asks for a ping at once, which h2 takes for a fault
            assert time.monotonic() < until, "the connection lives on"
        answers(server)


def test_a_lone_request_waits_for_nothing(running: ServerProcess) -> None:
    """No timer and no poll stands in the way: a wake-up that is missed would show as 200 ms."""
    call = predict_call(running.channel)
    seconds = []
    for _ in range(30):
        started = time.monotonic()
        call(request("mlp", {"x": X}), timeout=10)
        seconds.append(time.monotonic() - started)
        time.sleep(0.01)
    assert statistics.median(seconds) < 0.1
