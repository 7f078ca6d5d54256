"""The transport on pygrpc-native: HTTP/2 and gRPC in Rust threads outside the interpreter. Only this file knows it.

Unary calls come here in batches, as bytes. What the front does not do itself (grpc.health.v1, reflection, streams)
goes to a grpcio server on a private unix socket behind it.

What it leaves to others, and why it listens on loopback, on a unix socket or behind a proxy: it holds a whole message
before its size can be checked, expands gzip without a limit, has no TLS, no connection age, and tells no client to go
elsewhere when it drains.
"""

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pygrpc_native import EVENT_CANCEL, NativeGrpcFront

from serve_grpc.errors import Code, EnvironmentUnfit
from serve_grpc.settings import ConnectionSettings
from serve_grpc.transport import Answer, Call, Drained, Receive, Refusal, Status, within_limit
from serve_grpc.transport.grpcio import MOST_FLUSH_SECONDS, MOST_METADATA, MOST_STREAMS, GrpcioTransport
from serve_grpc.transport.sockets import refuse_taken_socket, remove_left_behind

# Of the runtime that does the HTTP/2 work: the interpreter is the bottleneck, and more threads only contend with it.
IO_THREADS = 1
# The front answers what it has accepted in its own time; closing it before that loses answers.
FLUSH_TICK = 0.005
LONGEST_DETAIL = 2000
FOLDER, SOCKET = "jaxport-", "fallback.sock"
# The one connection between the front and the server behind it.
FOR_EVER = ConnectionSettings(max_age=0)


class NativeTransport:
    """pygrpc-native behind the Transport interface.

    target: "host:port" or "unix:/path". methods: unary calls, served by the front; streams: bidirectional ones,
    served by the grpcio server behind it.
    """

    name = "native"

    def __init__(
        self,
        target: str,
        methods: Iterable[str],
        streams: Mapping[str, Refusal],
        max_message_bytes: int,
        connections: ConnectionSettings,
    ) -> None:
        self._target = target
        self._paths = tuple(methods)
        self._max_message_bytes = max_message_bytes
        self._connections = connections
        remove_left_behind(FOLDER, SOCKET)
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)  # however the start goes on
        self._fallback_socket = self._folder / SOCKET
        self._fallback = GrpcioTransport(
            f"unix:{self._fallback_socket}", (), streams, max_message_bytes, FOR_EVER
        )
        self._fallback.also_reflect(self._paths)
        self._front: NativeGrpcFront  # from start() on: making one binds
        self._started = False
        self._open: dict[int, Call] = {}  # the receiver's thread adds, whoever answers removes
        self._accepted = 0  # touched by the receiver's thread only
        self._draining = threading.Event()

    def start(self) -> str:
        """Binds and accepts; returns the address. Raises EnvironmentUnfit when the address is taken."""
        refuse_taken_socket(self._target)
        self._fallback.start()
        try:
            front = self._bound()
        except (OSError, ValueError) as error:
            self._fallback.stop()
            shutil.rmtree(self._folder, ignore_errors=True)
            flag = "--grpc-socket" if self._target.startswith("unix:") else "--host or --grpc-port"
            raise EnvironmentUnfit(
                f"cannot listen on {self._target}: taken or not allowed; change {flag}"
            ) from error
        front.set_fallback(str(self._fallback_socket))
        front.start()
        self._front, self._started = front, True
        if self._target.startswith("unix:"):
            return self._target
        return f"{self._target.rpartition(':')[0]}:{front.bound_port}"

    def _bound(self) -> NativeGrpcFront:
        return NativeGrpcFront(
            self._target,
            [(path, False) for path in self._paths],
            io_threads=IO_THREADS,
            call_details=True,  # deadlines and metadata
            metrics=True,  # tells when every answer has left
            max_concurrent_streams=MOST_STREAMS,
            max_metadata_size=MOST_METADATA,
            keepalive_time_ms=int(self._connections.keepalive * 1e3),
            keepalive_timeout_ms=int(self._connections.keepalive_timeout * 1e3),
        )

    @property
    def receivers(self) -> Sequence[Receive]:
        """The front's, and that of the streams behind it."""
        return (self._receive, *self._fallback.receivers)

    def respond(self, answers: Sequence[Answer]) -> None:
        """Hands each answer to the front; one whose caller has gone is dropped there."""
        front = self._front
        take, send, limit = self._open.pop, front.respond, self._max_message_bytes
        for call, answer in answers:
            handle = call.handle
            if take(handle, None) is None:
                continue
            if type(answer) is bytes and len(answer) <= limit:
                send(handle, answer)
                continue
            answer = within_limit(answer, limit)
            if isinstance(answer, Status):
                front.fail(handle, answer.code, answer.message[:LONGEST_DETAIL])
            else:
                send(handle, answer)

    def set_health(self, service: str, serving: bool | None) -> None:
        """What Check and Watch say; None makes the service unknown."""
        self._fallback.set_health(service, serving)

    def drain(self, timeout: float) -> Drained:
        """Refuses new calls and waits up to `timeout` seconds until the accepted ones are answered and sent."""
        end = time.monotonic() + timeout
        self._draining.set()
        while self._open and time.monotonic() < end:
            time.sleep(FLUSH_TICK)
        left = len(self._open)
        # A call whose message never comes whole counts as started, and would be waited for until the end.
        flushed_by = min(end, time.monotonic() + MOST_FLUSH_SECONDS)
        while time.monotonic() < flushed_by and not self._flushed():
            time.sleep(FLUSH_TICK)
        behind = self._fallback.drain(max(0.0, end - time.monotonic()))
        return Drained(self._accepted + behind.accepted, left + behind.unanswered)

    def stop(self) -> None:
        """Closes the front, then what is behind it."""
        if self._started:
            self._front.close()
        self._fallback.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self, most: int, timeout: float) -> list[Call]:
        front = self._front
        calls: list[Call] = []
        # Without a timeout a thread that waits here is never woken by a second close.
        events = front.recv_batch_details(most, int(timeout * 1000))
        if not events:
            if events is None:
                time.sleep(timeout)  # closed
            return calls
        now = time.monotonic()
        opened, paths, limit = self._open, self._paths, self._max_message_bytes
        draining = self._draining.is_set()
        for kind, call_id, method_id, payload, _, details in events:
            if kind == EVENT_CANCEL or payload is None or details is None:
                if (call := opened.get(call_id)) is not None:
                    call.cancelled = True
                continue
            metadata, peer, remaining = details
            if remaining is None:
                deadline = None
                look = len(payload) > limit or draining
            else:
                deadline = now + remaining
                look = remaining <= 0 or len(payload) > limit or draining
            if look and self._refused(call_id, payload, remaining):
                continue
            call = Call(paths[method_id], payload, deadline, now, call_id, self, metadata, False, peer)
            opened[call_id] = call
            calls.append(call)
        self._accepted += len(calls)
        return calls

    def _refused(self, call_id: int, payload: bytes, remaining: float | None) -> bool:
        """Whether a call was answered here: too large, too late, or the server is leaving."""
        front = self._front
        if len(payload) > self._max_message_bytes:
            front.fail(
                call_id,
                Code.RESOURCE_EXHAUSTED,
                f"the request has {len(payload)} bytes, over the server's --max-message-bytes "
                f"{self._max_message_bytes}; send fewer rows, or raise it",
            )
        elif remaining is not None and remaining <= 0:
            front.fail(call_id, Code.DEADLINE_EXCEEDED, "the deadline passed before the request was read")
        elif self._draining.is_set():
            front.fail(call_id, Code.UNAVAILABLE, "the server is shutting down; send this to another")
        else:
            return False
        return True

    def _flushed(self) -> bool:
        """Whether every call the front ever started has its status sent."""
        totals = self._front.metrics()
        if totals is None:
            return True
        return all(
            method["started"] <= sum(status["count"] for status in method["status"].values())
            for method in totals["methods"].values()
        )
