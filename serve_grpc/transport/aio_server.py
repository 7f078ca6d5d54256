"""grpc.aio's server, held to one rule: what one call brings harms no other.

From 1.8x on grpc.aio decodes the path of a call that names no registered method in its accept loop: a path that is
not UTF-8 ends the loop, and with it every call of everybody. So our methods are registered, which the core matches
as bytes, and every other call is refused here, before its path is looked at.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc import aio
from grpc._cython import cygrpc
from grpc.aio import _server as grpc_aio  # pyright: ignore[reportAttributeAccessIssue]


def _arguments(function: str) -> tuple[str, ...]:
    code = getattr(getattr(cygrpc, function, None), "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]


UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED.value[0]
# Where the accept loop has no registered calls it decodes in a task of the call's own.
HAS_REGISTERED = hasattr(cygrpc.AioServer, "_request_registered_call")
# How a call is handled, in the versions of grpcio that were looked at.
HANDLES_AS_KNOWN = _arguments("_handle_rpc") == (
    "method_name", "method_resolver", "interceptors", "rpc_state", "loop", "concurrency_exceeded",
) and _arguments("_schedule_rpc_coro") == ("rpc_coro", "rpc_state", "loop", "method_name")  # fmt: skip


def open_server(options: Sequence[tuple[str, int]]) -> aio.Server:
    """Needs a running loop. `register` every method before it starts."""
    if HAS_REGISTERED:
        try:
            return _Server(options)
        except TypeError:  # another version's constructor; `GrpcioTransport` notices when its loop ends
            pass
    return aio.server(options=options)


def register(server: Any, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
    """handlers: by full path, /package.Service/Method."""
    server.add_generic_rpc_handlers((_Methods(handlers),))
    if HAS_REGISTERED:
        for path, handler in handlers.items():
            _, service, method = path.split("/")
            server.add_registered_method_handlers(service, {method: handler})


class _Server(grpc_aio.Server):
    def __init__(self, options: Sequence[tuple[str, int]]) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Core(self._loop, None, (), (), tuple(options), None)


class _Core(cygrpc.AioServer):
    """Each method's calls are taken by a task of its own: grpc.aio's loop waits anew for every method with each call,
    40 us of its 490 with the methods of this server."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tasks: set[Any] = set()  # a loop holds its tasks weakly
        self._by_path: dict[str, grpc.RpcMethodHandler] = {}

    def add_registered_method_handlers(self, method_handlers: dict[str, grpc.RpcMethodHandler]) -> None:
        self._by_path |= method_handlers
        super().add_registered_method_handlers(method_handlers)

    def _make_request_call_future(self, method_bytes: bytes | None) -> Any:
        """What ends only when the server stops, or breaks."""
        if method_bytes is None or not HANDLES_AS_KNOWN:
            return super()._make_request_call_future(method_bytes)
        return cygrpc.get_working_loop().create_task(self._take(method_bytes))

    async def _take(self, method: bytes) -> None:
        loop, name = cygrpc.get_working_loop(), method.decode()
        resolver = cygrpc._MethodResolver([], self._by_path)
        while True:
            call = await self._request_registered_call(method)
            handling = cygrpc._handle_rpc(name, resolver, (), call, loop, False)
            self._keep(loop.create_task(cygrpc._schedule_rpc_coro(handling, call, loop, name)))

    async def _request_call(self) -> Any:
        """A call of no registered method."""
        loop = cygrpc.get_working_loop()
        while True:
            call = await super()._request_call()
            self._keep(loop.create_task(_refuse(call, loop)))

    def _keep(self, task: Any) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _refuse(call: Any, loop: Any) -> None:
    sending = loop.create_task(
        cygrpc._send_error_status_from_server(
            call, UNIMPLEMENTED, "Method not found!", (), cygrpc.SendInitialMetadataOperation(None, 0), loop
        )
    )
    try:
        await cygrpc._handle_cancellation_from_core(sending, call, loop)
        await sending
    except cygrpc.ExecuteBatchError:  # it has gone
        pass


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)


class CallersBytes(logging.Filter):
    """Keeps what callers sent out of grpcio's log: it writes a header that is not UTF-8, which may be a token, with a
    traceback for each time it is read, and another for a health check that is no message."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        return not text.startswith(("Invalid encoding on", "Unexpected [DecodeError]"))


def quiet() -> None:
    """From now on grpcio's log leaves out what callers sent."""
    log = logging.getLogger("grpc._cython.cygrpc")
    if not any(isinstance(each, CallersBytes) for each in log.filters):
        log.addFilter(CallersBytes())
