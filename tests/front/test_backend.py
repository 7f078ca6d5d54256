"""The server behind the proxy is absent, comes, goes and comes again; the proxy is never touched."""

import ipaddress
import json
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.front.load import ROW
from tests.front.proxy import Proxy
from tests.server_process import ServerProcess, eventually, outputs_of, predict_call, request

BEARER = "of-a-client-0123456789"
GUARDED = (("authorization", f"Bearer {BEARER}"),)


@pytest.fixture
def proxy(tmp_path_factory: pytest.TempPathFactory):
    with Proxy(tmp_path_factory.mktemp("b")) as envoy:
        yield envoy


def outcome(channel: grpc.Channel, **settings) -> tuple[str, str]:
    """Status and message of a call, which waits for nothing."""
    try:
        assert outputs_of(predict_call(channel)(ROW, timeout=10, **settings))["y"].tolist() == [[1, 1]]
        return "OK", ""
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        return error.code().name, error.details() or ""


def test_absent_then_there_then_killed_then_there_again(
    proxy: Proxy, models: Path, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "echo").symlink_to(models / "echo")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{BEARER} models=echo\n")
    flags = ["--grpc-socket", str(proxy.folder / "grpc.sock"), "--transport", "native"]
    flags += ["--cache-dir", str(cache), "--token-file", str(tokens), "--access-log", str(tmp_path / "log")]
    channel = proxy.channel()

    status, said = outcome(channel, metadata=GUARDED)
    assert status == "UNAVAILABLE" and said.startswith("the server behind this proxy is not running")
    assert str(proxy.folder) not in said

    with ServerProcess(tmp_path, *flags) as server:
        server.ready()
        assert outcome(channel, metadata=GUARDED)[0] == "OK"
        assert outcome(channel)[0] == "UNAUTHENTICATED"
        assert (
            outcome(channel, metadata=(("authorization", "Bearer another-0123456789"),))[0]
            == "UNAUTHENTICATED"
        )
        server.signal(9)
        server.wait()
    status, said = outcome(channel, metadata=GUARDED)
    assert status == "UNAVAILABLE" and said.startswith("the server")

    with ServerProcess(tmp_path, *flags) as server:
        server.ready()
        assert outcome(channel, metadata=GUARDED)[0] == "OK"
        server.signal()
        eventually(lambda: outcome(channel, metadata=GUARDED)[0] == "UNAVAILABLE", "it says that it leaves")
        assert server.wait() == 0
    peers = {json.loads(line)["peer"] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(peers) == 1 and ipaddress.ip_address(peers.pop())  # the client's, not that of the socket
    assert proxy.probe()[0] == 200


def test_a_server_that_dies_under_a_call_is_said_to(proxy: Proxy, slow_models: Path, cache: Path) -> None:
    flags = [
        "--grpc-socket",
        str(proxy.folder / "grpc.sock"),
        "--transport",
        "native",
        "--cache-dir",
        str(cache),
        "--max-batch",
        "1",
    ]
    with ServerProcess(slow_models, *flags) as server:
        server.ready()
        calls = [
            predict_call(proxy.channel()).future(
                request("slow", {"x": np.ones((1, 1), np.float32)}), timeout=20
            )
            for _ in range(8)
        ]
        eventually(lambda: proxy.stat("http.grpc.downstream_rq_active") > 0, "calls are under way")
        server.signal(9)
        ended = {(call.code().name, call.details()) for call in calls}
    assert ("UNAVAILABLE", "the server ended before it answered; try again") in ended
    assert {status for status, _ in ended} <= {"OK", "UNAVAILABLE"}
