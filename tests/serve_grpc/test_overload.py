"""More than the device can do, callers who give up, and a slow neighbour."""

import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.server_process import ServerProcess, eventually, predict_call, request

X = np.ones((1, 1), np.float32)
# What no transport has a part in is asked of one.
one_transport = pytest.mark.parametrize("transport", ["native"], indirect=True, scope="session")


@pytest.fixture(scope="module")
def server(
    slow_models: Path, models: Path, transport: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A slow and a fast model, one row a batch, four rows waiting at most."""
    folder = tmp_path_factory.mktemp("both")
    shutil.copytree(slow_models / "slow", folder / "slow")
    shutil.copytree(models / "echo", folder / "echo")
    with ServerProcess(folder, "--transport", transport, "--max-batch", "1", "--max-queue", "4") as process:
        yield process.ready()
        assert process.alive
        assert process.metric("jaxport_compiles_after_ready_total") == 0


def idle(server: ServerProcess) -> None:
    """Waits until nothing runs or waits any more."""
    server.predict("slow", {"x": X})
    time.sleep(0.1)  # figures follow the answer


def test_a_full_queue_answers_at_once_and_the_others_are_answered(server: ServerProcess) -> None:
    call = predict_call(server.channel)
    pending = [call.future(request("slow", {"x": X}), timeout=30) for _ in range(40)]
    codes = [answer.exception(timeout=30) for answer in pending]
    refused = [error for error in codes if error is not None]
    assert 1 <= len(pending) - len(refused) <= 8
    assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert "--max-queue" in refused[0].details()
    assert server.metric("jaxport_shed_total", model="slow", reason="queue_full") == len(refused)
    idle(server)


def test_a_flood_is_refused_by_name_and_never_cancelled(server: ServerProcess) -> None:
    """grpcio alone drops what is beyond a thousand pending calls, with a status that says the caller did it."""
    call = predict_call(server.channel)
    refused = server.metric("jaxport_shed_total", model="echo", reason="queue_full")
    flood = [
        call.future(request("echo", {"x": np.ones((1, 2), np.float32)}), timeout=60) for _ in range(2500)
    ]
    codes = Counter(answer.code() for answer in flood)
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
    counted = server.metric("jaxport_shed_total", model="echo", reason="queue_full") - refused
    assert counted == codes[grpc.StatusCode.RESOURCE_EXHAUSTED]


@one_transport
def test_full_is_said_before_the_device_has_done_anything(server: ServerProcess) -> None:
    """Counted in runs of the slow model, which take longer on a busy machine, and not in seconds."""
    runs = []
    with kept_full(server):
        for _ in range(8):
            before = slow_runs(server)
            answer = predict_call(server.channel).future(request("slow", {"x": X}), timeout=30)
            if answer.exception(timeout=30) is not None:
                runs.append(slow_runs(server) - before)
    assert len(runs) > 2
    assert statistics.median(runs) <= 1, runs
    idle(server)


def slow_runs(server: ServerProcess) -> float:
    return server.metric("jaxport_batch_rows_count", model="slow")


@contextmanager
def kept_full(server: ServerProcess) -> Iterator[None]:
    """Twice as many callers of the slow model as run and wait."""
    stop = threading.Event()

    def keep_asking() -> None:
        call = predict_call(server.channel)
        while not stop.is_set():
            if call.future(request("slow", {"x": X}), timeout=30).exception(timeout=30) is not None:
                time.sleep(0.01)

    threads = [threading.Thread(target=keep_asking) for _ in range(10)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@one_transport
def test_a_request_larger_than_a_batch_is_split_and_one_larger_than_the_queue_refused(
    server: ServerProcess,
) -> None:
    x = np.arange(5, dtype=np.float32)[:, None]
    assert server.predict("slow", {"x": x[:4]})["y"].shape == (4, 1)
    with pytest.raises(grpc.RpcError) as refused:
        server.predict("slow", {"x": x})
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "at most 4 rows in a request and 5 came; send them in pieces, or raise --max-queue" in (
        refused.value.details()
    )
    assert server.metric("jaxport_shed_total", model="slow", reason="too_large") == 1


@one_transport
def test_a_priority_is_let_in_whatever_waits_without_one(server: ServerProcess) -> None:
    with kept_full(server):
        for _ in range(3):
            assert server.predict("slow", {"x": X}, priority=1)["y"].shape == (1, 1)
    idle(server)


def test_a_deadline_that_passes_in_the_queue_is_not_run(server: ServerProcess) -> None:
    call = predict_call(server.channel)
    runs = slow_runs(server)
    ahead = [call.future(request("slow", {"x": X}), timeout=30) for _ in range(3)]
    time.sleep(0.02)
    with pytest.raises(grpc.RpcError) as late:
        call(request("slow", {"x": X}), timeout=0.1)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    for answer in ahead:
        answer.result(timeout=30)
    idle(server)
    eventually(lambda: slow_runs(server) >= runs + 4, "four runs")
    assert slow_runs(server) == runs + 4
    shed = server.metric("jaxport_shed_total", model="slow")
    assert shed > server.metric("jaxport_shed_total", model="slow", reason="queue_full")


def test_a_cancelled_request_is_not_run(server: ServerProcess) -> None:
    call = predict_call(server.channel)
    runs = slow_runs(server)
    before = server.metric("jaxport_shed_total", model="slow", reason="cancelled")
    ahead = [call.future(request("slow", {"x": X}), timeout=30) for _ in range(2)]
    time.sleep(0.05)
    given_up = [call.future(request("slow", {"x": X}), timeout=30) for _ in range(2)]
    eventually(lambda: server.metric("jaxport_queue_depth", model="slow") >= 2, "they wait")
    for answer in given_up:
        answer.cancel()
    for answer in ahead:
        answer.result(timeout=30)
    idle(server)
    eventually(lambda: slow_runs(server) >= runs + 3, "three runs")
    assert slow_runs(server) == runs + 3
    assert server.metric("jaxport_shed_total", model="slow", reason="cancelled") == before + 2


@one_transport
def test_a_slow_model_delays_a_fast_one_by_one_batch(server: ServerProcess) -> None:
    """Four runs of the slow model always wait; one or two end while the fast one's request is on its way."""
    with kept_full(server):
        runs = []
        for _ in range(7):
            before = slow_runs(server)
            server.predict("echo", {"x": np.ones((1, 2), np.float32)})
            runs.append(slow_runs(server) - before)
    assert statistics.median(runs) <= 2, runs
