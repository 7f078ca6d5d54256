"""`jaxport drain` before a real Envoy, with clients at work: nobody notices, and it always ends in time."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.front.conftest import NewProxy
from tests.front.load import ROW, working
from tests.front.proxy import Proxy
from tests.server_process import eventually, predict_call
from tests.servers import jaxport

CLOSES = "http.grpc.downstream_cx_drain_close"
ROUND_ROBIN = [("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}')]


@pytest.fixture
def leaving(new_proxy: NewProxy) -> Iterator[Proxy]:
    with new_proxy() as envoy:
        yield envoy


def started(proxy: Proxy, *flags: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "jaxport", "drain", "--admin-socket", str(proxy.admin_socket), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]", seconds: float) -> str:
    """What it printed; it has exit code 0."""
    printed, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0
    return printed


def check(proxy: Proxy) -> tuple[str, str]:
    """What grpc.health.v1's Check says on a connection of its own: a status, or the code and message of its failure."""
    with grpc.insecure_channel(proxy.grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status), ""
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            return error.code().name, error.details() or ""


def test_one_of_two_servers_leaves_under_load_and_no_call_fails(leaving: Proxy, proxy: Proxy) -> None:
    """Clients that go on naming the one that leaves, as long as it is there: the worst there can be."""
    both = f"ipv4:{leaving.grpc},{proxy.grpc}"
    channels = [
        grpc.insecure_channel(both, [*ROUND_ROBIN, ("grpc.use_local_subchannel_pool", 1)]) for _ in range(3)
    ]
    assert check(leaving) == ("SERVING", "")
    with working(*channels) as workers:
        eventually(lambda: leaving.stat("http.grpc.downstream_rq_total") > 50, "it is one of the two")
        begun = time.monotonic()
        draining = started(leaving, "--seconds", "5", "--propagate", "2")

        # First it fails its health checks and serves on, new connections as well, and sends nobody away.
        eventually(lambda: leaving.probe() == (503, "leaving\n"), "the probe fails", 1.5)
        assert check(leaving) == ("UNAVAILABLE", "this server is leaving")
        with grpc.insecure_channel(leaving.grpc, [("grpc.use_local_subchannel_pool", 1)]) as new:
            predict_call(new)(ROW, timeout=10)
        assert leaving.stat(CLOSES) == 0

        # Then its connections are told to go, and at the end no new one is taken.
        eventually(lambda: leaving.stat(CLOSES) >= 3, "GOAWAY for each connection", 3)
        printed = ended(draining, 10)
        assert time.monotonic() - begun < 5
        assert printed.startswith("drain: ")
        host, _, port = leaving.grpc.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5)

        # What kubelet does next: the server's SIGTERM, and Envoy's after it.
        served = [worker.outcomes["OK"] for worker in workers]
        time.sleep(0.5)
    assert [worker.failed for worker in workers] == [{}, {}, {}]
    assert all(worker.outcomes["OK"] > before + 20 for worker, before in zip(workers, served, strict=True))
    for channel in channels:
        channel.close()


def test_it_is_over_as_soon_as_it_is_quiet(leaving: Proxy) -> None:
    predict_call(leaving.channel())(ROW, timeout=10)
    begun = time.monotonic()
    assert ended(started(leaving, "--seconds", "60", "--propagate", "0.5"), 20).startswith(
        "drain: no request is left, "
    )
    assert 1.4 < time.monotonic() - begun < 10


def test_a_call_under_way_is_waited_for_until_the_time_is_up(leaving: Proxy) -> None:
    watched = health_pb2_grpc.HealthStub(leaving.channel()).Watch(health_pb2.HealthCheckRequest())
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    begun = time.monotonic()
    printed = ended(started(leaving, "--seconds", "4", "--propagate", "0"), 20)
    assert printed.startswith("drain: requests left when the time was up: 1, ")
    assert 2.5 < time.monotonic() - begun < 4
    assert watched.is_active()
    watched.cancel()


def test_without_an_envoy_it_says_so_and_succeeds(tmp_path: Path) -> None:
    done = jaxport("drain", "--admin-socket", str(tmp_path / "admin.sock"))
    assert done.returncode == 0 and done.stderr == ""
    assert "does not answer" in done.stdout and "No such file" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_an_envoy_that_hangs_does_not_keep_it(leaving: Proxy) -> None:
    begun = time.monotonic()
    draining = started(leaving, "--seconds", "3", "--propagate", "1")
    eventually(lambda: leaving.probe()[0] == 503, "it has begun")
    leaving.signal(signal.SIGSTOP)
    printed = ended(draining, 10)
    assert "does not answer (timed out)" in printed
    assert float(printed.split()[-2]) < 3  # as it says itself; starting an interpreter may take long here
    assert time.monotonic() - begun < 6
    leaving.signal(signal.SIGCONT)


def test_what_is_no_envoy_is_said_to_be_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "admin.sock"))
        listener.listen()
        done = jaxport("drain", "--admin-socket", str(tmp_path / "admin.sock"), "--seconds", "0.5")
    assert done.returncode == 0 and "does not answer (timed out)" in done.stdout


def test_an_answer_without_an_end_does_not_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        command = [sys.executable, "-m", "jaxport", "drain", "--admin-socket", str(path), "--seconds", "2"]
        draining = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with listener.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            end = time.monotonic() + 10
            while draining.poll() is None:
                assert time.monotonic() < end, "it goes on past its 2 seconds"
                with suppress(BrokenPipeError):
                    peer.send(b"x")
                time.sleep(0.1)
    assert "had not ended when the time was up" in ended(draining, 1)


def test_it_brings_nothing_heavy_along() -> None:
    """It runs within the time that a pod has to end, on a busy CPU."""
    asked = "import sys; from jaxport.commands import drain; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"jax", "grpc", "numpy", "google"} & set(loaded)
