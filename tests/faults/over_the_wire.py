"""Mutations to a real server: its answers are held against those of this process, which parses each one anew."""

import http.client
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import grpc

from jaxport.wire import open_inference_pb2 as oip
from serve_grpc.errors import Code
from serve_grpc.protocol import rest
from serve_grpc.transport import Status
from tests.faults import corpus
from tests.faults.in_process import EchoServer
from tests.faults.mutate import by_fields, json_values, mutated, other_tail
from tests.server_process import ServerProcess, connect, eventually

CODES = {code.value[0]: Code(code.value[0]) for code in grpc.StatusCode if code.value[0] in set(Code)}
HTTP_CODES = {200: Code.OK, 400: Code.INVALID_ARGUMENT, 404: Code.NOT_FOUND}
ALLOWED = {
    Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED, Code.UNIMPLEMENTED, Code.UNAVAILABLE,
}  # fmt: skip
TOGETHER = 64
JSON_SHARE = 8
MODEL = "echo"
MOST_GROWTH = 64 * 2**20


def ask_all(server: ServerProcess, count: int, seed: int, codes: Counter[str]) -> None:
    """`count` mutations of requests to `echo`. Raises AssertionError with the request that was answered wrongly.

    Between any two batches an untouched request is answered bit for bit, on each protocol in turn.
    """
    random = Random(seed)
    valid = corpus.grpc_requests(MODEL)
    bodies = corpus.json_requests(MODEL)
    done = 0
    host, _, port = server.http.rpartition(":")
    http_client = http.client.HTTPConnection(host, int(port), timeout=10)
    with EchoServer() as reference, connect(server.grpc) as channel:
        while done < count:
            batch = [random.choice(valid)]
            while len(batch) < TOGETHER:
                method, payload = random.choice(valid)
                payload = mutated(random, payload, random.choice(valid)[1], by_fields)
                batch += [(method, payload)] * random.choice((1, 3))
                batch += [(method, other_tail(random, payload))] * random.choice((0, 1))
            _check(reference, batch, _ask(channel, batch), codes)
            for _ in range(TOGETHER // JSON_SHARE):
                body = mutated(random, random.choice(bodies), random.choice(bodies), json_values)
                _check_json(http_client, reference, body, codes)
            done += len(batch) + TOGETHER // JSON_SHARE
    http_client.close()


def _ask(channel: grpc.Channel, batch: Sequence[tuple[str, bytes]]) -> list[bytes | Code]:
    calls: list[Any] = []
    streamed = [payload for method, payload in batch if method == corpus.STREAM_INFER]
    stream = channel.stream_stream(corpus.STREAM_INFER)(iter(streamed), timeout=20)
    for method, payload in batch:
        if method != corpus.STREAM_INFER:
            calls.append(channel.unary_unary(method).future(payload, timeout=20))
    in_stream, unary = iter(list(stream)), iter(calls)
    answers: list[bytes | Code] = []
    for method, _ in batch:
        if method == corpus.STREAM_INFER:
            answers.append(next(in_stream))
        else:
            call = next(unary)
            answers.append(call.result() if call.exception() is None else CODES[call.code().value[0]])
    assert next(in_stream, None) is None
    return answers


def _check(
    reference: EchoServer,
    batch: Sequence[tuple[str, bytes]],
    answers: Sequence[bytes | Code],
    codes: Counter[str],
) -> None:
    for (method, payload), answer in zip(batch, answers, strict=True):
        right = reference.fresh(method, payload)
        wanted: bytes | Code = right.code if isinstance(right, Status) else right
        found = answer
        if method == corpus.STREAM_INFER and isinstance(answer, bytes):
            said = oip.ModelStreamInferResponse.FromString(answer).error_message
            found = wanted if said and isinstance(wanted, Code) else answer
        code = found if isinstance(found, Code) else Code.OK
        codes[code.name] += 1
        told = method in (
            corpus.GET_MODEL,
            corpus.METADATA,
            corpus.TF_METADATA,
        )  # of another model than this one
        right_code = code is (wanted if isinstance(wanted, Code) else Code.OK)
        expired = code is Code.UNAVAILABLE
        assert code in ALLOWED, (method, payload.hex(), code)
        assert expired or (right_code if told else found == wanted), (method, payload.hex(), found, right)


def _check_json(
    client: http.client.HTTPConnection, reference: EchoServer, body: bytes, codes: Counter[str]
) -> None:
    client.request("POST", f"/v1/models/{MODEL}:predict", body)
    response = client.getresponse()
    answer = response.read()
    prediction = rest.Prediction(MODEL, 0, "", body)
    [right] = reference.admit([prediction.read])
    wanted = right.code if isinstance(right, Status) else Code.OK
    codes[f"JSON {wanted.name}"] += 1
    assert HTTP_CODES.get(response.status) is wanted, (body, response.status, answer)
    if wanted is Code.OK:
        assert answer == prediction.body(), body


def run(folder: Path, transport: str, count: int, seed: int) -> Counter[str]:
    """Starts a server on `folder` and asks it. Raises AssertionError."""
    from tests.serve_grpc import bundles

    bundles.export_echo(folder / "models")
    (folder / "models" / MODEL / "labels").mkdir()
    (folder / "models" / MODEL / "labels" / "stable").write_text("1\n")
    codes: Counter[str] = Counter()
    flags = ("--transport", transport, "--max-message-bytes", "1MiB", "--max-batch", "8")
    with ServerProcess(folder / "models", *flags) as server:
        server.ready()
        ask_all(server, count // 10, seed, codes)
        proc = Path(f"/proc/{server.pid}")

        def resident() -> int:
            return int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        before, open_before = resident(), sum(1 for _ in (proc / "fd").iterdir())
        ask_all(server, count - count // 10, seed + 1, codes)
        eventually(
            lambda: sum(1 for _ in (proc / "fd").iterdir()) <= open_before, "the descriptors are closed"
        )
        assert resident() - before < MOST_GROWTH, f"it grew by {resident() - before} bytes"
        assert server.alive
    return codes
