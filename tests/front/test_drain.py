"""`jaxport drain` before a real Envoy, with clients at work: nobody notices, and it always ends in time."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jaxport.cli import main
from jaxport.commands import drain
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
        draining = started(leaving, "--seconds", "30", "--propagate", "4")

        # First it fails its health checks and serves on, new connections as well, and sends nobody away.
        eventually(lambda: leaving.probe() == (503, "leaving\n"), "the probe fails")
        assert check(leaving) == ("UNAVAILABLE", "this server is leaving")
        with grpc.insecure_channel(leaving.grpc, [("grpc.use_local_subchannel_pool", 1)]) as new:
            predict_call(new)(ROW, timeout=10)
        assert leaving.stat(CLOSES) == 0

        # Then its connections are told to go, and at the end no new one is taken.
        eventually(lambda: leaving.stat(CLOSES) >= 3, "GOAWAY for each connection")
        printed = ended(draining, 40)
        assert time.monotonic() - begun < 30, "before its time was up"
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
    assert ended(started(leaving, "--seconds", "60", "--propagate", "0.5"), 70).startswith(
        "drain: no request is left, "
    )
    assert 1.4 < time.monotonic() - begun < 60, "before its time was up"


def test_a_call_under_way_is_waited_for_until_the_time_is_up(leaving: Proxy) -> None:
    watched = health_pb2_grpc.HealthStub(leaving.channel()).Watch(health_pb2.HealthCheckRequest())
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    begun = time.monotonic()
    printed = ended(started(leaving, "--seconds", "4", "--propagate", "0"), 20)
    assert printed.startswith("drain: requests left when the time was up: 1, ")
    assert time.monotonic() - begun > 2.5
    assert float(printed.split()[-2]) < 4  # as it says itself; starting an interpreter may take long here
    assert watched.is_active()
    watched.cancel()


def test_without_an_envoy_it_says_so_and_succeeds(tmp_path: Path) -> None:
    done = jaxport("drain", "--admin-socket", str(tmp_path / "admin.sock"), "--seconds", "1")
    assert done.returncode == 0 and done.stderr == ""
    at_once, at_the_end = done.stdout.splitlines()
    assert "admin.sock does not answer (No such file or directory); trying on" in at_once
    assert "the time was up, and Envoy's admin does not answer (No such file" in at_the_end


def test_an_envoy_that_hangs_does_not_keep_it(leaving: Proxy) -> None:
    draining = started(leaving, "--seconds", "3", "--propagate", "1")
    eventually(lambda: leaving.probe()[0] == 503, "it has begun")
    leaving.signal(signal.SIGSTOP)
    printed = ended(draining, 30)
    assert "the time was up, and Envoy's admin does not answer (timed out)" in printed
    assert float(printed.split()[-2]) < 3
    leaving.signal(signal.SIGCONT)


def test_what_is_no_envoy_is_said_to_be_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "admin.sock"))
        listener.listen()
        done = jaxport("drain", "--admin-socket", str(tmp_path / "admin.sock"), "--seconds", "0.5")
    assert done.returncode == 0 and "does not answer (timed out)" in done.stdout


class ScriptedAdmin:
    """Answers one call after the other as `script` says, and the last entry again for every call that follows.

    ok: 200, and figures where they are asked for. Any other is a failure: see `_answer`.
    """

    def __init__(self, path: Path, script: list[str], active: Sequence[int] = ()) -> None:
        self._script = iter(script)
        self._last = script[-1]
        self._active = itertools.chain(active, itertools.repeat(0))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._held: list[socket.socket] = []
        self.answered: list[str] = []
        self.failed = 0
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "ScriptedAdmin":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._listener, *self._held):
            each.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            asked = peer.recv(65536).decode().split()[1].partition("?")[0]
            self._answer(peer, asked, next(self._script, self._last))

    def _answer(self, peer: socket.socket, asked: str, how: str) -> None:
        if how != "ok":
            self.failed += 1
        else:
            self.answered.append(asked)
        with suppress(OSError):
            match how:
                case "ok":
                    stats = (
                        [
                            {"name": f"http.grpc.downstream_rq_{name}", "value": value}
                            for name, value in (("active", next(self._active)), ("total", 7))
                        ]
                        if asked == "/stats"
                        else []
                    )
                    body = json.dumps({"stats": stats}).encode()
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                case "hangs":
                    self._held.append(peer)
                    return
                case "trickles":
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                    while True:
                        peer.sendall(b"x")
                        time.sleep(0.02)
                case "garbage":
                    peer.sendall(os.urandom(2000))
                case "other":
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n[3, 4]")
                case "busy":
                    peer.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
                case "cut":
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
                case "resets":
                    pass
        peer.close()


def drained(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *flags: str
) -> tuple[float, str]:
    """Seconds that it took, and what it printed."""
    for name, seconds in (("CALL", 0.3), ("LAST_CALL", 0.2), ("QUIET", 0.3)):
        monkeypatch.setattr(drain, f"{name}_SECONDS", seconds)
    begun = time.monotonic()
    assert main(["drain", "--admin-socket", str(path), *flags]) == 0
    return time.monotonic() - begun, capsys.readouterr().out


FAILURES = ["hangs", "trickles", "garbage", "busy", "cut", "resets"]
STEPS = ["/runtime_modify", "/healthcheck/fail", "/stats", "/drain_listeners"]


@pytest.mark.parametrize("failure", [*FAILURES, "other"])
def test_one_failed_answer_at_each_step_is_asked_for_again(
    failure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures fail after the first that came, and before it."""
    posted = [failure, "ok"] if failure != "other" else ["ok"]  # what a post answers is not read
    script = [*posted, *posted, failure, "ok", failure, *["ok"] * 20]
    with ScriptedAdmin(tmp_path / "a", script) as admin:
        took, printed = drained(tmp_path / "a", capsys, monkeypatch, "--seconds", "20", "--propagate", "0.1")
    assert "drain: no request is left, " in printed and took < 8
    assert printed.count("does not answer") == 1, "told once"
    assert [name for name, _ in itertools.groupby(admin.answered)] == STEPS
    assert admin.failed == script.count(failure)


@pytest.mark.parametrize("failure", FAILURES)
def test_an_admin_that_never_answers_is_asked_until_the_time_is_up_and_no_longer(
    failure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedAdmin(tmp_path / "a", [failure]) as admin:
        took, printed = drained(tmp_path / "a", capsys, monkeypatch, "--seconds", "1.5", "--propagate", "0")
    assert 1 < took < 1.5
    assert "drain: the time was up, and Envoy's admin does not answer (" in printed
    assert printed.isascii() and len(printed.splitlines()) == 2
    assert admin.failed >= 4


def test_requests_that_end_while_it_fails_are_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure tells nothing: neither that it is quiet, nor that it is not."""
    script = ["ok", "ok", "ok", "busy", "ok", "garbage", "ok"]
    with ScriptedAdmin(tmp_path / "a", script, [2, 2, 1]) as admin:
        took, printed = drained(tmp_path / "a", capsys, monkeypatch, "--seconds", "20", "--propagate", "0")
    assert "drain: no request is left, " in printed and took < 5
    assert admin.answered.count("/stats") >= 5


def test_an_admin_that_comes_late_is_told_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose container is started anew: no socket, and then one that nobody listens at."""
    path = tmp_path / "a"
    late: list[ScriptedAdmin] = []

    def come() -> None:
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(path))
            time.sleep(0.3)
        path.unlink()
        late.append(ScriptedAdmin(path, ["ok"]).__enter__())

    with contextlib.ExitStack() as stack:
        timer = threading.Timer(0.3, come)
        timer.start()
        took, printed = drained(path, capsys, monkeypatch, "--seconds", "20", "--propagate", "0.1")
        timer.join()
        (admin,) = late
        stack.push(admin.__exit__)
    assert "drain: no request is left, " in printed and 0.6 < took < 5
    assert [name for name, _ in itertools.groupby(admin.answered)] == STEPS


def test_it_brings_nothing_heavy_along() -> None:
    """It runs within the time that a pod has to end, on a busy CPU."""
    asked = "import sys; from jaxport.commands import drain; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"jax", "grpc", "numpy", "google"} & set(loaded)
