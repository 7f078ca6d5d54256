"""The transport on stock grpcio: grpc.aio in a thread of its own. Only this file knows grpc.aio.

Measured with an echo through one worker thread (2 cores, two client processes, concurrency 64): grpc.aio 2,180
calls/s for 490 us of CPU each, grpc.server with 80 threads 1,630 for 600 us. Bytes in, bytes out: grpcio
deserializes nothing, and a batch of answers costs one wake-up of the loop.
"""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from serve_grpc.errors import EnvironmentUnfit
from serve_grpc.settings import ConnectionSettings
from serve_grpc.transport import Answer, Call, Drained, Receive, Refusal, Status, within_limit
from serve_grpc.transport.aio_server import open_server, quiet, register
from serve_grpc.transport.gather import Gather
from serve_grpc.transport.health_service import HealthService
from serve_grpc.transport.sockets import refuse_taken_socket
from serve_grpc.transport.tls import Certificates

CODES = {code.value[0]: code for code in grpc.StatusCode}
# Trailers travel in headers, which peers cap at 8 KiB.
LONGEST_DETAIL = 2000
MOST_PENDING = 1_000_000
# Of one connection, further ones wait at the client: beyond what any queue holds, so that the queue answers first.
MOST_STREAMS = 10_000
# grpcio's own limit refuses at random between 8 and 16 KiB.
MOST_METADATA = 16 * 1024
# Requests of one stream that may wait for their answers; the next is not read before one is back.
MOST_OPEN_PER_STREAM = 64
# Draining: no call for QUIET_SECONDS means that the core holds none; callers that send without waiting for answers
# never let it be quiet, hence a limit. Then a moment for the GOAWAY to go out. TICK: left to grpcio to cancel in.
QUIET_SECONDS = 0.03
MOST_TAKE_IN = 0.5
GOAWAY_SECONDS = 0.02
MOST_FLUSH_SECONDS = 2.0  # for the last answers to leave
TICK = 0.05


class GrpcioTransport:
    """grpc.aio behind the Transport interface, with grpc.health.v1 and reflection on the same port.

    target: "host:port" or "unix:/path". methods: the full paths of the unary calls it accepts; streams: those of
    the bidirectional ones, each message of which is a call of its own, answered in order. Others are UNIMPLEMENTED.
    """

    name = "grpcio"

    def __init__(
        self,
        target: str,
        methods: Iterable[str],
        streams: Mapping[str, Refusal],
        max_message_bytes: int,
        connections: ConnectionSettings,
        certificates: Certificates | None = None,
    ) -> None:
        self._target = target
        self._methods = tuple(methods)
        self._reflected: tuple[str, ...] = ()
        self._streams = streams
        self._max_message_bytes = max_message_bytes
        self._connections = connections
        self._certificates = certificates
        self._knows_subjects = certificates is not None and certificates.asks_clients
        self._calls: queue.SimpleQueue[list[Call]] = queue.SimpleQueue()
        self._accepted = self._open = 0  # touched on the loop's thread only
        self._gather = Gather(self._calls.put)
        self._loop = self._gather.loop
        self._thread = threading.Thread(target=self._run, name="grpcio", daemon=True)
        self._held: list[Answer] | None = None  # answers kept back while draining
        self._reading: set[asyncio.Future[None]] = set()  # a task per open stream
        self._health = HealthService()
        self._server: aio.Server | None = None
        self._watching: asyncio.Future[None] | None = None
        self._died: Exception | None = None

    def also_reflect(self, methods: Iterable[str]) -> None:
        """Methods that somebody else serves at the same address, for reflection to name."""
        self._reflected = tuple(methods)

    def start(self) -> str:
        """Binds and accepts; returns the address. Raises EnvironmentUnfit when the address is taken."""
        self._thread.start()
        return self._on_loop(self._start())

    @property
    def receivers(self) -> Sequence[Receive]:
        """One: the loop's."""
        return (self._receive,)

    def _receive(self, most: int, timeout: float) -> list[Call]:
        calls: list[Call] = []
        try:
            calls += self._calls.get(timeout=timeout)
            while len(calls) < most:
                calls += self._calls.get_nowait()
        except queue.Empty:
            pass
        return calls

    def respond(self, answers: Sequence[Answer]) -> None:
        """One wake-up of the loop for the whole batch."""
        self._loop.call_soon_threadsafe(self._resolve, answers)

    def set_health(self, service: str, serving: bool | None) -> None:
        """What Check and Watch say; None makes the service unknown."""
        states = health_pb2.HealthCheckResponse
        status = (
            states.SERVING
            if serving
            else states.NOT_SERVING
            if serving is not None
            else states.SERVICE_UNKNOWN
        )
        self._on_loop(self._health.set(service, status))

    def drain(self, timeout: float) -> Drained:
        """Refuses new calls and waits up to `timeout` seconds for the accepted ones."""
        return self._on_loop(self._drain(timeout))

    def stop(self) -> None:
        """Cancels what is open, ends the loop and its thread."""
        if self._thread.is_alive():
            if self._server is not None:
                self._on_loop(self._server.stop(None))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> str:
        quiet()
        self._server = open_server(_options(self._connections, self._max_message_bytes))
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)  # its own default is SERVING
        handlers = {method: self._handler(method) for method in self._methods}
        handlers |= {method: self._stream_handler(method) for method in self._streams}
        register(self._server, handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = {method.split("/")[1] for method in (*handlers, *self._reflected)} | {health.SERVICE_NAME}
        reflection.enable_server_reflection((*sorted(services), reflection.SERVICE_NAME), self._server)
        refuse_taken_socket(self._target)
        try:
            if self._certificates is None:
                port = self._server.add_insecure_port(self._target)
            else:
                port = self._server.add_secure_port(self._target, self._certificates.credentials())
        except RuntimeError as error:
            flag = "--grpc-socket" if self._target.startswith("unix:") else "--host or --grpc-port"
            raise EnvironmentUnfit(
                f"cannot listen on {self._target}: taken or not allowed; change {flag}"
            ) from error
        await self._server.start()
        self._watching = asyncio.ensure_future(self._watch(self._server))
        return (
            self._target if self._target.startswith("unix:") else f"{self._target.rpartition(':')[0]}:{port}"
        )

    def _run(self) -> None:
        self._loop.run_forever()
        if self._died is not None:
            raise self._died  # to threading.excepthook, as from every thread that the server cannot do without

    async def _watch(self, server: aio.Server) -> None:
        """grpc.aio shuts its server down when its accept loop breaks, and tells only who waits for the end."""
        try:
            await server.wait_for_termination()
        except Exception as error:  # whatever broke it
            self._died = error
            self._loop.stop()

    def _handler(self, method: str) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(partial(self._call, method))

    def _stream_handler(self, method: str) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(partial(self._stream, method, self._streams[method]))

    async def _call(self, method: str, payload: bytes, context: aio.ServicerContext) -> bytes:
        answer = within_limit(await self._answer(method, payload, context), self._max_message_bytes)
        if isinstance(answer, bytes):
            return answer
        await context.abort(CODES[answer.code], answer.message[:LONGEST_DETAIL])
        raise AssertionError("abort raises")

    async def _stream(
        self, method: str, refusal: Refusal, messages: AsyncIterator[bytes], context: aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """A message is read while earlier ones are still being answered; answers leave in the order of requests."""
        answers: asyncio.Queue[tuple[bytes, asyncio.Task[bytes | Status]] | None] = asyncio.Queue(
            MOST_OPEN_PER_STREAM
        )

        async def read() -> None:
            try:
                async for payload in messages:
                    answer = asyncio.ensure_future(self._answer(method, payload, context))
                    await answers.put((payload, answer))
            finally:
                await answers.put(None)

        reading = asyncio.ensure_future(read())
        self._reading.add(reading)
        try:
            while (entry := await answers.get()) is not None:
                payload, answering = entry
                answer = within_limit(await answering, self._max_message_bytes)
                yield refusal(payload, answer) if isinstance(answer, Status) else answer
        finally:
            self._reading.discard(reading)
            reading.cancel()
            while not answers.empty():
                if (entry := answers.get_nowait()) is not None:
                    entry[1].cancel()

    async def _answer(self, method: str, payload: bytes, context: aio.ServicerContext) -> bytes | Status:
        now = time.monotonic()
        remaining = context.time_remaining()
        deadline = None if remaining is None else now + remaining
        metadata = context.invocation_metadata() or ()
        answered = self._loop.create_future()
        call = Call(method, payload, deadline, now, answered, self, metadata, peer=context.peer())  # type: ignore[arg-type]
        if self._knows_subjects:
            call.subject = _common_name(context)
        self._accepted += 1
        self._open += 1
        self._gather.accepted(call)
        try:
            return await answered
        except asyncio.CancelledError:  # the caller has gone, or its deadline has passed
            call.cancelled = True
            raise
        finally:
            self._open -= 1

    async def _drain(self, timeout: float) -> Drained:
        if self._server is None:
            return Drained(0, 0)
        end = self._loop.time() + timeout
        await self._take_in(min(end, self._loop.time() + MOST_TAKE_IN))
        stopping = asyncio.ensure_future(self._server.stop(max(0.0, end - self._loop.time())))
        await asyncio.sleep(GOAWAY_SECONDS)
        self._let_go()
        self._health.end_watches()
        for reading in self._reading:  # a stream has no end of its own either
            reading.cancel()
        while self._open and self._loop.time() < end - TICK:
            await asyncio.wait([stopping], timeout=TICK)
        left = self._open  # before what is left is cancelled, and seems to have given up
        # A call whose message never comes whole would be waited for until the end.
        await asyncio.wait(
            [stopping], timeout=max(0.0, min(MOST_FLUSH_SECONDS, end - self._loop.time() - TICK))
        )
        await self._server.stop(None)
        await stopping
        return Drained(self._accepted, left)

    async def _take_in(self, end: float) -> None:
        """Accepts what the core holds and keeps the answers back until no more comes.

        Stopping cancels a call that grpc.aio has not accepted yet, although it has arrived. While answers are kept
        back callers send nothing new, so that soon none is left; the GOAWAY then overtakes the answers.
        """
        self._held = []
        while self._loop.time() < end:
            before = self._accepted
            await asyncio.sleep(QUIET_SECONDS)
            if self._accepted == before:
                return

    def _resolve(self, answers: Sequence[Answer]) -> None:
        if self._held is not None:
            self._held += answers
            return
        for call, answer in answers:
            if not call.handle.done():
                call.handle.set_result(answer)

    def _let_go(self) -> None:
        held, self._held = self._held or [], None
        self._resolve(held)


def _common_name(context: aio.ServicerContext) -> str:
    """Of the caller's certificate; "" where it has not exactly one."""
    names = list(context.auth_context().get("x509_common_name", ()))
    return names[0].decode("utf-8", "replace") if len(names) == 1 else ""


def _options(connections: ConnectionSettings, max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        *_connection_options(connections),
        # Without this two servers share one port and each gets half of the calls.
        ("grpc.so_reuseport", 0),
        # grpcio's own are 1000 and 3000, past which it cancels calls that nobody here has seen or counted.
        # Admission is the queue's: it refuses with a status, and in the metrics.
        ("grpc.server.max_pending_requests", MOST_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
        ("grpc.max_metadata_size", MOST_METADATA),
        ("grpc.absolute_max_metadata_size", MOST_METADATA),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    ]


def _connection_options(connections: ConnectionSettings) -> list[tuple[str, int]]:
    options = [
        ("grpc.keepalive_time_ms", int(connections.keepalive * 1e3)),
        ("grpc.keepalive_timeout_ms", int(connections.keepalive_timeout * 1e3)),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client may ask as often: grpcio's own limit of five minutes closes its connection for that.
        ("grpc.http2.min_ping_interval_without_data_ms", int(connections.keepalive * 1e3 / 2)),
    ]
    if connections.max_age:
        options += [
            ("grpc.max_connection_age_ms", int(connections.max_age * 1e3)),
            ("grpc.max_connection_age_grace_ms", int(connections.age_grace * 1e3)),
        ]
    return options
