"""What reaches an open port, on both transports: the server lives, answers others, and keeps nothing of it.

native holds a whole message before its size is checked (see serve_grpc/transport/native.py), so that it may grow by
the messages in flight; grpcio refuses on the prefix. Both are held to the same bounds here.
"""

import contextlib
import http.client
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.faults.attacks import ATTACKS, SENT
from tests.faults.over_the_wire import ask_all
from tests.serve_grpc import bundles
from tests.server_process import ServerProcess, connect, eventually, outputs_of, predict_call, request

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
WANTED = np.asarray(bundles.mlp(bundles.mlp_params(0), X)["logits"])
# In which somebody else is answered, on a connection of their own.
SECONDS = 10.0
# Bytes that the server may have grown by while an attack lasts, and after it.
MOST_MEANWHILE, MOST_AFTER = 256 * 2**20, 64 * 2**20


@pytest.fixture(scope="module")
def server(
    models: Path, cache: Path, transport: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("wire")
    (folder / "mlp").symlink_to(models / "mlp")
    (folder / "echo").mkdir()
    (folder / "echo" / "1").symlink_to(models / "echo" / "1")
    (folder / "echo" / "labels").mkdir()
    (folder / "echo" / "labels" / "stable").write_text("1\n")
    flags = (
        "--transport",
        transport,
        "--max-message-bytes",
        "4MiB",
        "--max-queue",
        "20000",
        "--max-batch",
        "16",
        "--cache-dir",
        str(cache),
    )
    with ServerProcess(folder, *flags) as process:
        answers_others(process.ready())
        yield process
        assert process.alive
        assert process.metric("jaxport_compiles_after_ready_total") == 0
        # grpcio says with a traceback of its own that an answer's caller has gone.
        assert transport == "grpcio" or not [line for line in process.lines if "Traceback" in line]
        process.signal()
        assert process.wait() == 0, "connections that are left open do not hold up the exit"


def answers_others(server: ServerProcess) -> None:
    """gRPC and HTTP, each anew, rightly and soon."""
    started = time.monotonic()
    with connect(server.grpc) as channel:
        found = outputs_of(predict_call(channel)(request("mlp", {"x": X}), timeout=10))["logits"]
    assert np.allclose(found, WANTED, atol=1e-5)
    assert time.monotonic() - started < SECONDS
    started = time.monotonic()
    assert server.get("/healthz") == (200, "alive\n")
    assert time.monotonic() - started < SECONDS


def descriptors(server: ServerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{server.pid}/fd").iterdir())


def resident(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("attack", ATTACKS)
def test_it_lives_and_answers_others(server: ServerProcess, attack: str) -> None:
    open_before, bytes_before = descriptors(server), resident(server)
    with ExitStack() as stack:
        ATTACKS[attack](server, stack)
        answers_others(server)
        assert resident(server) - bytes_before < MOST_MEANWHILE
    answers_others(server)
    eventually(lambda: descriptors(server) <= open_before, "the descriptors are closed")
    assert resident(server) - bytes_before < MOST_AFTER
    assert server.alive


def test_what_callers_send_stays_out_of_the_log(server: ServerProcess) -> None:
    before = sum(map(len, server.lines))
    with ExitStack() as stack:
        ATTACKS["not_text"](server, stack)
        with connect(server.grpc) as channel, contextlib.suppress(grpc.RpcError):
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff", timeout=10)
    answers_others(server)
    assert not [line for line in server.lines if SENT in line]
    assert sum(map(len, server.lines)) - before < 1000, server.lines[-20:]


def test_mutations_get_what_a_fresh_parse_gives(server: ServerProcess) -> None:
    """Every protocol, over the wire; python -m tests.faults.mutations --transport does more."""
    open_before = descriptors(server)
    codes: Counter[str] = Counter()
    ask_all(server, 2000, 5, codes)
    assert codes["OK"] > 100
    assert codes["INVALID_ARGUMENT"] > 200
    eventually(lambda: descriptors(server) <= open_before, "the descriptors are closed")


def test_http_heads_that_are_mutated(server: ServerProcess) -> None:
    """Whatever they become: an answer below 500, 501 or 505 for what HTTP itself has no answer to, or none."""
    from random import Random

    from tests.faults.attacks import opened, pushed
    from tests.faults.mutate import blind

    random = Random(3)
    body = b'{"inputs": [[1, 2, 3, 4]]}'
    valid = (
        b"POST /v1/models/mlp/versions/1:predict?timeout=5 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    )
    codes: Counter[int] = Counter()
    for _ in range(400):
        with ExitStack() as stack:
            sock = opened(server.http, stack)
            sent = (
                blind(random, blind(random, valid, valid), valid)
                if random.random() < 0.5
                else blind(random, valid, valid)
            )
            if not pushed(sock, sent):
                continue
            with stack.enter_context(http.client.HTTPResponse(sock)) as response:
                try:
                    sock.shutdown(1)
                    response.begin()
                except (OSError, http.client.HTTPException):
                    continue
                codes[response.status] += 1
    assert set(codes) <= {200, 400, 404, 405, 408, 411, 413, 414, 431, 501, 505}, codes
    assert codes[200] > 20
    answers_others(server)
