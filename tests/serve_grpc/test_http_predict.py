"""Predict for curl: TensorFlow Serving's REST form on the HTTP port of a real server."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from serve_grpc.connections import TimedReader
from serve_grpc.settings import HttpSettings
from tests.server_process import ServerProcess, eventually

X = [[1, 2, 3, 4], [0.5, -1, 1e-3, 7]]
LIMIT = 4 * 2**20


def post(server: ServerProcess, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    """(HTTP status, the JSON that came); `body` is sent as it is when it is bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(server, "POST", f"/v1/models/{path}", raw, headers)


def ask(
    server: ServerProcess, method: str, path: str, body: bytes | None = None, headers: Any = None
) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection(server.http, timeout=20)) as connection:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def address(server: ServerProcess) -> tuple[str, int]:
    host, _, port = server.http.rpartition(":")
    return host, int(port)


def raw(server: ServerProcess, sent: bytes) -> bytes:
    """What comes back for bytes, until the server closes."""
    with socket.create_connection(address(server), timeout=20) as sock:
        sock.sendall(sent)
        got = b""
        while part := sock.recv(65536):
            got += part
        return got


def post_head(length: int | str, *more: str, path: str = "/v1/models/echo:predict") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def still_right(server: ServerProcess) -> None:
    assert post(server, "echo:predict", {"instances": [[1, 2]]}) == (200, {"predictions": [[1.0, 2.0]]})
    assert server.get("/healthz")[0] == 200


# What is answered


def test_rows_and_columns_give_what_grpc_gives(server: ServerProcess) -> None:
    expected = server.predict("mlp", {"x": np.array(X, np.float32)})["logits"]
    status, rows = post(server, "mlp:predict", {"instances": X})
    assert (status, list(rows)) == (200, ["predictions"])
    assert np.array(rows["predictions"], np.float32).tobytes() == expected.tobytes()
    status, columns = post(server, "mlp/versions/1:predict", {"inputs": X, "signature_name": "predict"})
    assert (status, list(columns)) == (200, ["outputs"])
    assert columns["outputs"] == rows["predictions"]
    named = [
        post(server, "mlp:predict", {"instances": [{"x": row} for row in X]})[1],
        post(server, "mlp:predict", {"inputs": {"x": X}, "signature_name": "serving_default"})[1],
    ]
    assert named == [rows, columns]


def test_several_inputs_and_outputs_bfloat16_bool_nan_and_infinity(server: ServerProcess) -> None:
    h = [[1, 2.5, float("nan")], [0.1, float("-inf"), 3e38]]
    rows = [{"h": row, "keep": keep} for row, keep in zip(h, [True, False], strict=True)]
    status, answer = post(server, "mixed:predict", {"instances": rows})
    assert status == 200
    exact = np.array(h).astype(jnp.bfloat16)
    same = np.array([row["same"] for row in answer["predictions"]]).astype(jnp.bfloat16)
    assert same.tobytes() == exact.tobytes()
    assert [row["kept"] for row in answer["predictions"]] == [11, -11]
    status, answer = post(server, "mixed:predict", {"inputs": {"h": h, "keep": [True, False]}})
    assert status == 200
    assert np.array(answer["outputs"]["same"]).astype(jnp.bfloat16).tobytes() == exact.tobytes()
    assert answer["outputs"]["kept"] == [11, -11]


def test_more_rows_than_the_largest_bucket(server: ServerProcess) -> None:
    rows = np.random.default_rng(1).normal(size=(50, 2)).astype(np.float32)
    _, answer = post(server, "echo:predict", {"instances": rows.tolist()})
    assert np.array(answer["predictions"], np.float32).tobytes() == rows.tobytes()


def test_it_is_the_same_queue_with_a_label_of_its_own(server: ServerProcess) -> None:
    counted = {"protocol": "rest", "model": "echo", "status": "OK"}
    before = server.metric("jaxport_request_seconds_count", **counted)
    batches = server.metric("jaxport_batch_rows_sum", model="echo")
    post(server, "echo:predict", {"instances": [[1, 2], [3, 4]]})
    eventually(
        lambda: server.metric("jaxport_request_seconds_count", **counted) == before + 1, "counted once"
    )
    assert server.metric("jaxport_batch_rows_sum", model="echo") == batches + 2


def test_a_model_says_its_state_and_its_signatures(server: ServerProcess) -> None:
    state = {
        "model_version_status": [
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }
    assert ask(server, "GET", "/v1/models/tokens") == (200, state)
    assert ask(server, "GET", "/v1/models/tokens/versions/1") == (200, state)
    status, described = ask(server, "GET", "/v1/models/tokens/metadata")
    assert (status, described["model_spec"]) == (
        200,
        {"name": "tokens", "signature_name": "", "version": "1"},
    )
    signature = described["metadata"]["signature_def"]["signature_def"]["predict"]
    sizes = [dim["size"] for dim in signature["outputs"]["logits"]["tensor_shape"]["dim"]]
    assert (signature["inputs"]["tokens"]["dtype"], sizes) == ("DT_INT32", ["-1", "8", "16"])
    assert ask(server, "GET", "/v1/models/nope")[0] == 404
    assert ask(server, "GET", "/v1/models/tokens/versions/9")[0] == 404


# What is refused

BAD = {
    "model": ("nope:predict", {"instances": X}, 404, "'nope'"),
    "version": ("mlp/versions/9:predict", {"instances": X}, 404, "version 9"),
    "signature": ("mlp:predict", {"instances": X, "signature_name": "train"}, 404, "'train'"),
    "classify": ("mlp:classify", {"instances": X}, 404, ":predict"),
    "no JSON": ("mlp:predict", b'{"instances": [[1, 2, 3, 4]', 400, "no JSON"),
    "no UTF-8": ("mlp:predict", b"\xff", 400, "no UTF-8"),
    "empty": ("mlp:predict", b"", 400, "no JSON"),
    "a list": ("mlp:predict", X, 400, "no JSON object"),
    "a key twice": ("mlp:predict", b'{"instances": [], "instances": []}', 400, "'instances' twice"),
    "an input twice": ("mlp:predict", b'{"inputs": {"x": [], "x": []}}', 400, "'x' twice"),
    "another key": ("mlp:predict", {"instance": X}, 400, "'instance'"),
    "both forms": ("mlp:predict", {"instances": X, "inputs": X}, 400, "one of"),
    "neither form": ("mlp:predict", {}, 400, "one of"),
    "no instances": ("mlp:predict", {"instances": []}, 400, "at least one"),
    "one number": ("mlp:predict", {"instances": 1}, 400, "no list"),
    "a deep list": ("mlp:predict", b'{"instances": ' + b"[" * 200_000, 400, "nested too deep"),
    "a deep object": ("mlp:predict", b'{"a":' * 100_000, 400, "nested too deep"),
    "an input": ("mlp:predict", {"inputs": {"y": X}}, 400, "input 'y'"),
    "an input missing": ("mixed:predict", {"inputs": {"keep": [True]}}, 400, "'h' is missing"),
    "unnamed": ("mixed:predict", {"inputs": [[1, 2, 3]]}, 400, "takes h, keep"),
    "rows that differ": (
        "mixed:predict",
        {"instances": [{"h": [1, 2, 3], "keep": True}, {"h": [1, 2, 3]}]},
        400,
        "instances[1]",
    ),
    "ragged": ("mlp:predict", {"instances": [[1, 2, 3, 4], [1]]}, 400, "list of 1 at [1]"),
    "narrow": ("mlp:predict", {"instances": [[1, 2]]}, 400, "[1, 2]; needed: [b, 4]"),
    "bytes": ("mlp:predict", {"instances": [{"b64": "aGk="}]}, 400, "bytes"),
    "bytes in columns": ("mlp:predict", {"inputs": {"b64": "aGk="}}, 400, "bytes"),
    "a fraction": ("tokens:predict", {"instances": [[0, 0, 0, 1.5, 0, 0, 0, 0]]}, 400, "1.5 at [0, 3]"),
    "too large": ("tokens:predict", {"instances": [[0] * 7 + [2**31]]}, 400, f"{2**31} at [0, 7]"),
    "a huge number": ("mlp:predict", b'{"instances": [[1, 2, 3, 1e999]]}', 400, "at [0, 3]"),
    "a huge integer": ("mlp:predict", b'{"instances": [[' + b"9" * 9999 + b"]]}", 400, "4,300 digits"),
    "timeout": ("mlp:predict?timeout=soon", {"instances": X}, 400, "'soon'"),
    "negative timeout": ("mlp:predict?timeout=-1", {"instances": X}, 400, "'-1'"),
    "too large an answer": ("tokens:predict", {"instances": [[0] * 8] * 10_000}, 429, "--max-message-bytes"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_request_has_its_status_and_reason(server: ServerProcess, what: str) -> None:
    path, body, status, says = BAD[what]
    found, answer = post(server, path, body)
    assert (found, list(answer)) == (status, ["error"]), answer
    assert says in answer["error"]
    assert "\n" not in answer["error"]
    still_right(server)


def test_a_body_over_the_limit_is_refused_without_reading_it(server: ServerProcess) -> None:
    answer = raw(server, post_head(LIMIT + 1, "Expect: 100-continue"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert f"{LIMIT + 1} bytes; --max-message-bytes allows {LIMIT}".encode() in answer
    answer = raw(server, post_head(10**18) + bytes(10**6))  # the refusal arrives although more was sent
    assert answer.startswith(b"HTTP/1.1 413 ")
    still_right(server)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/models/echo:predict HTTP/1.1\r\n\r\n", 411),
        (b"POST /v1/models/echo:predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (post_head(5, "Transfer-Encoding: chunked") + b"0\r\n\r\n", 411),
        (post_head("-5"), 400),
        (post_head("5_0"), 400),
        (post_head("+5"), 400),
        (post_head(5, "Content-Length: 6") + b"12345", 400),
        (b"POST /v1/models/echo:predict HTTP/2.0\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),  # TLS on a plain port
        (b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + (b"x: " + b"y" * 30_000 + b"\r\n") * 9 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"BREW /v1/models/echo:predict HTTP/1.1\r\n\r\n", 501),
        (b"GET /v1/models/echo:predict HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 404),
    ],
)
def test_what_is_no_request_of_ours_is_answered_and_closed(
    server: ServerProcess, head: bytes, status: int
) -> None:
    answer = raw(server, head)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    body = answer.partition(b"\r\n\r\n")[2]
    assert list(json.loads(body)) == ["error"]
    assert b"HTTP/1.1" not in body  # what followed the head was not taken for a request


# How a connection is used


def test_a_connection_is_used_again_also_after_a_refusal(server: ServerProcess) -> None:
    with closing(http.client.HTTPConnection(server.http, timeout=20)) as connection:
        connection.connect()
        sock = connection.sock
        for body, status in ((b'{"instances": [[1, 2]]}', 200), (b"no", 400), (b'{"inputs": [[1, 2]]}', 200)):
            connection.request("POST", "/v1/models/echo:predict", body)
            reply = connection.getresponse()
            reply.read()
            assert (reply.status, connection.sock) == (status, sock)


def test_requests_that_come_together_are_answered_in_order(server: ServerProcess) -> None:
    bodies = [json.dumps({"instances": [[i, i]]}).encode() for i in range(5)]
    sent = b"".join(post_head(len(body)) + body for body in bodies)
    answers = raw(server, sent + b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").split(b"HTTP/1.1 ")[
        1:
    ]
    assert [json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in answers[:5]] == [
        {"predictions": [[float(i), float(i)]]} for i in range(5)
    ]
    assert answers[5].endswith(b"alive\n")


def test_the_body_of_a_get_is_not_the_next_request(server: ServerProcess) -> None:
    inner = b"GET /healthz HTTP/1.1\r\n\r\n"
    head = f"GET /readyz HTTP/1.1\r\nContent-Length: {len(inner)}\r\n\r\n".encode()
    assert raw(server, head + inner).count(b"HTTP/1.1") == 1


def test_curl_waits_for_100_continue(server: ServerProcess) -> None:
    body = b'{"instances": [[1, 2]]}'
    with socket.create_connection(address(server), timeout=20) as sock:
        sock.sendall(post_head(len(body), "Expect: 100-continue", "Connection: close"))
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_a_request_cut_off_harms_nobody(server: ServerProcess) -> None:
    for sent in (post_head(100) + b'{"inst', b"POST /v1/models/ec", b"\r\n", b""):
        with socket.create_connection(address(server), timeout=20) as sock:
            sock.sendall(sent)
    still_right(server)


def test_probes_answer_while_heads_come_slowly_on_every_connection(server: ServerProcess) -> None:
    most = HttpSettings.max_connections
    with ExitStack() as stack:
        for _ in range(most + 50):
            sock = stack.enter_context(socket.create_connection(address(server), timeout=20))
            sock.sendall(b"POST /v1/models/echo:predict HTTP/1.1\r\nHost:")
        for _ in range(3):
            assert server.get("/healthz")[0] == 200
            assert server.get("/readyz")[0] == 200
        still_right(server)


def test_probes_answer_while_every_place_is_taken(server: ServerProcess) -> None:
    with ExitStack() as stack:
        # A few more: one may have to make room, while the connections of the test before are still being closed.
        for _ in range(HttpSettings.max_requests + 8):
            sock = stack.enter_context(socket.create_connection(address(server), timeout=20))
            sock.sendall(post_head(100) + b"{")

        def refused() -> bool:
            return post(server, "echo:predict", {"instances": [[1, 2]]})[0] == 429

        eventually(refused, "a request more than there are places is refused")
        assert server.get("/healthz")[0] == 200
        assert server.get("/readyz")[0] == 200
        assert server.predict("echo", {"x": np.ones((1, 2), np.float32)})["y"].shape == (1, 2)
    eventually(lambda: not refused(), "places are given back")
    still_right(server)


def test_a_peer_has_a_time_for_its_bytes_however_often_it_sends_one() -> None:
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.02):
            theirs.send(b"x")

    sender = threading.Thread(target=trickle)
    with ours, theirs:
        sender.start()
        reader = TimedReader(ours)
        reader.allow(1000, 0.2)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            while True:
                reader.read(10)
        assert 0.15 < time.monotonic() - start < 15, "the 1000 bytes take 20 s"
        stop.set()
        sender.join()


# A server whose runs take a tenth of a second


@pytest.fixture(scope="module")
def slow(slow_models: Path, cache: Path) -> Iterator[ServerProcess]:
    flags = ("--max-batch", "1", "--max-queue", "4", "--cache-dir", str(cache))
    with ServerProcess(slow_models, *flags) as process:
        yield process.ready()


def test_a_caller_that_leaves_is_not_computed_for(slow: ServerProcess) -> None:
    body = b'{"instances": [[1], [1], [1]]}'
    head = post_head(len(body), path="/v1/models/slow:predict")
    with socket.create_connection(address(slow), timeout=20) as first:
        first.sendall(head + body)
        time.sleep(0.1)
        with socket.create_connection(address(slow), timeout=20) as leaving:
            body = b'{"instances": [[1]]}'
            leaving.sendall(post_head(len(body), path="/v1/models/slow:predict") + body)
            time.sleep(0.05)
        assert first.recv(100).startswith(b"HTTP/1.1 200")
    eventually(lambda: slow.metric("jaxport_shed_total", reason="cancelled") == 1, "counted as cancelled")


def test_a_label_stands_for_a_version(slow: ServerProcess) -> None:
    status, answer = post(slow, "slow/labels/stable:predict", {"instances": [[1]]})
    assert (status, "'stable'" in answer["error"]) == (404, True)
    label = slow.models / "slow" / "labels" / "stable"
    label.parent.mkdir()
    label.write_text("1\n")
    try:
        path = "slow/labels/stable:predict"
        eventually(lambda: post(slow, path, {"instances": [[1]]})[0] == 200, "the label is read")
        assert ask(slow, "GET", "/v1/models/slow/labels/stable")[0] == 200
        assert ask(slow, "GET", "/v1/models/slow/labels/stable/metadata")[0] == 200
    finally:
        label.unlink()
        label.parent.rmdir()


def test_a_timeout_is_answered_when_it_passes(slow: ServerProcess) -> None:
    """Not when the rows before it are done: the answer to those comes later."""
    answered: list[int] = []
    before = threading.Thread(
        target=lambda: answered.append(post(slow, "slow:predict", {"instances": [[1]] * 3})[0])
    )
    before.start()
    eventually(lambda: slow.metric("jaxport_queue_depth", model="slow") > 0, "they wait")
    status, answer = post(slow, "slow:predict?timeout=0.02", {"instances": [[1]]})
    assert (status, "?timeout=" in answer["error"]) == (504, True)
    assert answered == []
    before.join()
    assert answered == [200]


def test_a_full_queue_is_429_and_a_stop_answers_what_was_accepted(slow: ServerProcess) -> None:
    eventually(lambda: slow.metric("jaxport_queue_depth", model="slow") == 0, "idle")
    found: list[int] = []

    def send() -> None:
        found.append(post(slow, "slow:predict", {"instances": [[1]]})[0])

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    time.sleep(0.15)
    slow.signal()
    for thread in threads:
        thread.join()
    assert slow.wait() == 0
    assert set(found) <= {200, 429, 503}
    assert found.count(200) >= 3
    assert 429 in found
    assert slow.line(r"stopped accepted=(\d+) unanswered=(\d+)").group(2) == "0"
