"""Requests under /v1/models on the HTTP port: through the same door as every other, each waiting on its own thread."""

import json
import queue
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

from serve_grpc.access import Access
from serve_grpc.catalog import Catalog
from serve_grpc.errors import Code, InvalidRequest, RequestError
from serve_grpc.protocol import Read, rest
from serve_grpc.transport import Answer, Call, Metadata, Status

TARGET = re.compile(r"/v1/models/([^/:]+)(?:/versions/([0-9]{1,18})|/labels/([^/:]+))?(:predict|/metadata)?")
JSON = "application/json"
# A caller without ?timeout= waits so long, and none longer than the second: each holds a thread.
DEFAULT_SECONDS, MOST_SECONDS = 60.0, 600.0
# How often a waiting thread looks whether its caller has gone.
LOOK_SECONDS = 0.1

HTTP_STATUS = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
}

Admit = Callable[[Sequence[tuple[Call, str, Read]]], None]


class Page(NamedTuple):
    """An HTTP answer."""

    status: int
    content_type: str
    body: bytes
    headers: Sequence[tuple[str, str]] = ()


class Target(NamedTuple):
    """What a path names. version 0 and label "": the version that serves. verb: ":predict", "/metadata" or ""."""

    model: str
    version: int
    label: str
    verb: str
    query: str


class Request(NamedTuple):
    """One HTTP request. received: seconds of time.monotonic(). gone: whether its caller still listens."""

    target: Target
    metadata: Metadata
    peer: str
    received: float
    gone: Callable[[], bool]


def target(path: str) -> Target | None:
    """What a path and query under /v1/models ask for; None for any other."""
    path, _, query = path.partition("?")
    match = TARGET.fullmatch(path)
    if match is None:
        return None
    model, version, label, verb = match.groups()
    return Target(unquote(model), int(version or 0), unquote(label or ""), verb or "", query)


def error_page(status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> Page:
    """{"error": message}."""
    return Page(status, JSON, json.dumps({"error": message}).encode() + b"\n", headers)


class Rest:
    """Makes calls of requests and waits for their answers. It is the sink of its calls.

    closed: why nothing is answered here, or "".
    """

    def __init__(self, admit: Admit, access: Access | None = None, closed: str = "") -> None:
        self._admit = admit
        self._access = access
        self.closed = closed

    def unwelcome(self, request: Request) -> Page | None:
        """The refusal of a caller that may not ask, for which its body need not be read."""
        if self._access is None:
            return None
        try:
            self._access.caller(request.metadata, "").may(request.target.model)
        except RequestError as error:
            return self.refuse(request, error)
        return None

    def predict(self, request: Request, body: bytes) -> Page | None:
        """The answer, or None when the caller has gone."""
        at = request.target
        prediction = rest.Prediction(at.model, at.version, at.label, body)
        answer = self._answer(request, prediction.read)
        if isinstance(answer, Status):
            return _refusal(answer)
        return None if answer is None else Page(200, JSON, prediction.body())

    def describe(self, request: Request) -> Page | None:
        """A version's state, or its metadata."""
        at = request.target
        read = rest.metadata if at.verb == "/metadata" else rest.status
        answer = self._answer(request, read(at.model, at.version, at.label))
        if isinstance(answer, Status):
            return _refusal(answer)
        return None if answer is None else Page(200, JSON, answer)

    def refuse(self, request: Request, error: RequestError) -> Page | None:
        """An answer without a look at the body, counted as every other."""

        def read(_: Catalog) -> bytes:
            raise error

        answer = self._answer(request, read)
        return _refusal(answer) if isinstance(answer, Status) else None

    def respond(self, answers: Sequence[Answer]) -> None:
        """Wakes the threads that wait."""
        for call, answer in answers:
            call.handle.put(answer)

    def _answer(self, request: Request, read: Read) -> bytes | Status | None:
        try:
            seconds = _timeout(request.target.query)
        except InvalidRequest as error:
            return Status(Code.INVALID_ARGUMENT, str(error))
        deadline = request.received + seconds
        answered: queue.SimpleQueue[bytes | Status] = queue.SimpleQueue()
        method = f"/v1/models{request.target.verb}"
        call = Call(
            method, b"", deadline, request.received, answered, self, request.metadata, peer=request.peer
        )
        self._admit([(call, rest.NAME, read)])
        return _wait(call, deadline, request.gone)


def _wait(call: Call, deadline: float, gone: Callable[[], bool]) -> bytes | Status | None:
    while True:
        remaining = deadline - time.monotonic()
        try:
            return call.handle.get(timeout=min(LOOK_SECONDS, max(remaining, 0.0)))
        except queue.Empty:
            if gone():
                call.cancelled = True
                return None
            if remaining <= 0:
                call.cancelled = True  # what is still queued is dropped, not run for nobody
                return Status(
                    Code.DEADLINE_EXCEEDED, "no answer within the timeout; ?timeout=SECONDS changes it"
                )


def _timeout(query: str) -> float:
    given = parse_qs(query).get("timeout")
    if given is None:
        return DEFAULT_SECONDS
    try:
        seconds = float(given[-1])
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= MOST_SECONDS:
        raise InvalidRequest(
            f"timeout={given[-1][:40]!r}; needed: seconds, more than 0 and at most {MOST_SECONDS:g}"
        )
    return seconds


def _refusal(status: Status) -> Page:
    asks = [("WWW-Authenticate", "Bearer")] if status.code == Code.UNAUTHENTICATED else []
    return error_page(HTTP_STATUS[status.code], status.message, asks)
