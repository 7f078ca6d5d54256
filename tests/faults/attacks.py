"""What reaches a port that anyone can reach: each attack opens sockets on a stack, and leaves them open."""

import contextlib
import json
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from random import Random

import h2.events
import h2.exceptions
import h2.settings
import numpy as np

from tests.faults.corpus import PREDICT
from tests.faults.mutate import varint
from tests.http2 import RawClient, message
from tests.server_process import ServerProcess, eventually, request

MIB = 2**20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, HEADERS, CONTINUATION, DATA = 4, 6, 1, 9, 0
SMALL = request("mlp", {"x": np.ones((1, 4), np.float32)}).SerializeToString()
# 240 KB of answer for 320 KB of request.
LARGE = request("mlp", {"x": np.ones((20_000, 4), np.float32)}).SerializeToString()
SENT = "a-token-0123456789"
Attack = Callable[[ServerProcess, ExitStack], None]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def opened(address: str, stack: ExitStack) -> socket.socket:
    host, _, port = address.rpartition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=5))


def pushed(sock: socket.socket, data: bytes) -> bool:
    """Whether all of it was taken: a server may close, or not read on."""
    try:
        sock.settimeout(2)
        sock.sendall(data)
    except OSError:
        return False
    return True


def client(server: ServerProcess, stack: ExitStack) -> RawClient:
    raw = stack.enter_context(RawClient(server.grpc))
    raw.read(1)  # its settings
    return raw


def flood(server: ServerProcess, stack: ExitStack, data: bytes, times: int) -> None:
    """Frames behind a proper beginning, whose answers nobody reads."""
    sock = opened(server.grpc, stack)
    pushed(sock, PREFACE + frame(SETTINGS, 0, 0, b""))
    for _ in range(times):
        if not pushed(sock, data):
            break


def garbage(server: ServerProcess, stack: ExitStack) -> None:
    random = Random(1)
    for address in (server.grpc, server.http):
        for _ in range(20):
            pushed(opened(address, stack), random.randbytes(random.randint(1, 50_000)))


def other_protocols(server: ServerProcess, stack: ExitStack) -> None:
    """HTTP/1 and TLS to the gRPC port, HTTP/2 and TLS to the HTTP port."""
    outgoing = ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    for _ in range(10):
        pushed(opened(server.grpc, stack), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        pushed(opened(server.grpc, stack), b"POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n")
        pushed(opened(server.http, stack), PREFACE + frame(SETTINGS, 0, 0, b""))
    tls = outgoing.read()
    assert tls[0] == 22
    for address in (server.grpc, server.http):
        for _ in range(10):
            pushed(opened(address, stack), tls)


def half_open(server: ServerProcess, stack: ExitStack) -> None:
    """Connections that say nothing, or stop in the middle; on the HTTP port more than it keeps."""
    for _ in range(100):
        opened(server.grpc, stack)
        pushed(opened(server.grpc, stack), PREFACE[:10])
        pushed(opened(server.grpc, stack), PREFACE + frame(SETTINGS, 0, 0, b"") + b"\0\1")
    for beginning in (
        b"",
        b"GET / HT",
        b"POST /v1/models/mlp:predict HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
    ):
        for _ in range(100):
            pushed(opened(server.http, stack), beginning)


def never_reads(server: ServerProcess, stack: ExitStack) -> None:
    """Megabytes of answers that have no window, and pages that nobody takes."""
    for _ in range(3):
        raw = client(server, stack)
        raw.http2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        raw.flush()
        for _ in range(6):
            raw.send(raw.begin(PREDICT), message(LARGE), end=True, seconds=3)
    body = json.dumps({"inputs": [[0.5] * 4] * 20_000}).encode()
    head = f"POST /v1/models/mlp:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(6):
        pushed(opened(server.http, stack), head + body)
        pushed(opened(server.http, stack), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
    eventually(lambda: server.metric("jaxport_queue_depth") == 0, "it has answered all that it took")


def thousand_streams(server: ServerProcess, stack: ExitStack) -> None:
    """All of them open together on one connection; each is answered."""
    raw = client(server, stack)
    streams = [raw.begin(PREDICT) for _ in range(1000)]
    for stream in streams:
        raw.http2.send_data(stream, message(SMALL), end_stream=True)
    raw.flush()
    until = time.monotonic() + 10
    ended: Counter[int] = Counter()
    while ended.total() < len(streams) and time.monotonic() < until and raw.read():
        events, raw.events = raw.events, []
        for event in events:
            if isinstance(event, h2.events.TrailersReceived):
                ended[int(dict(event.headers or ())[b"grpc-status"])] += 1
    assert ended == {0: 1000}


def lying_lengths(server: ServerProcess, stack: ExitStack) -> None:
    """Prefixes that promise too much, too little, or gigabytes; one of these stays open."""
    raw = client(server, stack)
    for said, sent in ((2**32 - 1, 10), (100, 10), (3, 50), (0, 7), (2**31, 0), (4 * MIB + 1, 1000)):
        stream = raw.begin(PREDICT)
        raw.send(stream, struct.pack(">BI", 0, said) + bytes(sent), end=True)
        assert raw.status(stream, 0.5) != 0, (said, sent)
    for body in (
        message(SMALL) * 2,
        b"",
        b"\0",
        message(SMALL)[:-3],
        message(b"\x1f\x8b" + SMALL, compressed=True),
    ):
        stream = raw.begin(PREDICT)
        raw.send(stream, body, end=True) if body else raw.http2.end_stream(stream)
        raw.flush()
        raw.status(stream, 0.5)
    for _ in range(50):
        waiting = client(server, stack)
        waiting.send(waiting.begin(PREDICT), struct.pack(">BI", 0, 2**32 - 1) + bytes(100), end=False)


def truncated(server: ServerProcess, stack: ExitStack) -> None:
    """Good bytes that end anywhere, with the connection."""
    recorded = RawClient.__new__(RawClient)
    whole = PREFACE + frame(SETTINGS, 0, 0, b"")
    raw = stack.enter_context(RawClient(server.grpc))
    sent: list[bytes] = []
    recorded.__dict__.update(raw.__dict__)
    raw.socket.close()
    recorded.flush = lambda: sent.append(recorded.http2.data_to_send())  # type: ignore[method-assign]
    stream = recorded.begin(PREDICT)
    recorded.http2.send_data(stream, message(SMALL), end_stream=True)
    recorded.flush()
    whole += b"".join(sent)
    for cut in range(1, len(whole), 3):
        with ExitStack() as now:
            pushed(opened(server.grpc, now), whole[:cut])


def oversized(server: ServerProcess, stack: ExitStack) -> None:
    """Half as much again as --max-message-bytes; over HTTP announced, and sent as far as it is taken."""
    raw = client(server, stack)
    stream = raw.begin(PREDICT)
    raw.send(stream, message(bytes(6 * MIB)), end=True)
    assert raw.status(stream) == 8
    head = f"POST /v1/models/mlp:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {6 * MIB}\r\n\r\n"
    sock = opened(server.http, stack)
    pushed(sock, head.encode() + bytes(MIB))
    assert b" 413 " in sock.recv(4096)
    lying = head.replace(str(6 * MIB), "1000").encode() + b'{"inputs": [[1,2,3,4]]}'
    sock = opened(server.http, stack)
    pushed(sock, lying)
    sock.shutdown(socket.SHUT_WR)


def rapid_reset(server: ServerProcess, stack: ExitStack) -> None:
    raw = client(server, stack)
    try:
        for _ in range(3000):
            stream = raw.http2.get_next_available_stream_id()
            raw.begin(PREDICT)
            raw.http2.reset_stream(stream, 8)
    except (OSError, h2.exceptions.ProtocolError):
        return  # it has had enough
    pushed(raw.socket, raw.http2.data_to_send())


def endless_continuation(server: ServerProcess, stack: ExitStack) -> None:
    sock = opened(server.grpc, stack)
    pushed(sock, PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 0, 1, b"\x82"))
    piece = frame(CONTINUATION, 0, 1, (b"\x00\x01a\x7f\x81\x7e" + b"b" * 381) * 41)  # HPACK, to be decoded
    for _ in range(2048):
        if not pushed(sock, piece):
            break


def huge_headers(server: ServerProcess, stack: ExitStack) -> None:
    for size in (20_000, 2 * MIB):
        sock = opened(server.grpc, stack)
        block = b"\x83\x86\x00\x01x\x7f" + varint(size - 127) + b"v" * size
        pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
        pushed(sock, PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 0, 1, pieces[0]))
        for at, piece in enumerate(pieces[1:], start=2):
            pushed(sock, frame(CONTINUATION, 4 * (at == len(pieces)), 1, piece))
    for line in (
        b"GET /" + b"a" * MIB,
        b"GET / HTTP/1.1\r\nX: " + b"v" * MIB,
        b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 50_000,
    ):
        pushed(opened(server.http, stack), line)


def floods(server: ServerProcess, stack: ExitStack) -> None:
    """Frames that each ask for an answer, or do nothing, by the ten thousand."""
    flood(server, stack, frame(PING, 0, 0, bytes(8)) * 1000, 20)
    flood(server, stack, frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0") * 1000, 20)
    raw = client(server, stack)
    raw.begin(PREDICT)
    pushed(raw.socket, frame(DATA, 0, 1, b"") * 20_000)


def random_frames(server: ServerProcess, stack: ExitStack) -> None:
    random = Random(2)
    for _ in range(60):
        sock = opened(server.grpc, stack)
        pushed(sock, PREFACE + frame(SETTINGS, 0, 0, b""))
        for _ in range(random.randint(1, 12)):
            kind, stream = random.randrange(12), random.choice((0, 1, 2, 3, 2**31 - 1))
            payload = random.randbytes(random.choice((0, 1, 4, 5, 8, 40)))
            pushed(sock, frame(kind, random.randrange(256), stream, payload))


def literal(*fields: tuple[bytes, bytes]) -> bytes:
    """Header fields as HPACK has them without a table: any bytes."""
    return b"".join(b"\0" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in fields)


def not_text(server: ServerProcess, stack: ExitStack) -> None:
    """Paths, names of hosts and values of headers that are not UTF-8."""
    proper = {
        b":method": b"POST", b":scheme": b"http", b":path": PREDICT.encode(), b":authority": b"x",
        b"content-type": b"application/grpc", b"te": b"trailers", b"authorization": b"x",
    }  # fmt: skip
    for field, value in (
        (b":path", b"/\xff"),
        (b":path", PREDICT.encode() + b"\xff"),
        (b":path", b"\xff\xfe"),
        (b":authority", b"\xff"),
        (b"authorization", f"Bearer {SENT}".encode() + b"\xff"),
        (b":method", b"\xff"),
    ):
        head = literal(*(proper | {field: value}).items())
        sock = opened(server.grpc, stack)
        whole = frame(HEADERS, 4, 1, head) + frame(DATA, 1, 1, message(SMALL))
        pushed(sock, PREFACE + frame(SETTINGS, 0, 0, b"") + whole)
        sock.settimeout(0.1)
        with contextlib.suppress(OSError):
            while sock.recv(65536):
                pass


ATTACKS: dict[str, Attack] = {
    each.__name__: each
    for each in (
        garbage, other_protocols, half_open, never_reads, thousand_streams, lying_lengths, truncated, oversized,
        rapid_reset, endless_continuation, huge_headers, floods, random_frames, not_text,
    )
}  # fmt: skip
