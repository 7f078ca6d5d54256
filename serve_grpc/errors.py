"""Everything the server can refuse, with its gRPC status and exit code in one table."""

from enum import IntEnum
from typing import ClassVar


class Code(IntEnum):
    """The gRPC status codes the server answers with (numbers of grpc/status.h)."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class ServeError(Exception):
    """One line: the thing, the value found, the value needed, the flag or file to change."""

    exit_code: ClassVar[int] = 2


class ConfigError(ServeError):
    """A flag or folder that no retry will make right."""


class EnvironmentUnfit(ServeError):
    """This machine cannot run the server as told: a port is taken, no device, a read-only folder."""

    exit_code = 4


class LoadRefused(ServeError):
    """A bundle that must not serve on this device; the version before it keeps serving."""

    exit_code = 3


class CacheDamaged(ServeError):
    """An entry of the compile cache that cannot be used; what it holds is compiled instead."""

    exit_code = 3


class RequestError(ServeError):
    """A request is answered with a status instead of a payload. The server is not affected."""


class InvalidRequest(RequestError):
    """The tensors or the message do not fit the signature."""


class Unauthenticated(RequestError):
    """The request does not say who asks, or says it with a token that is not known."""


class PermissionDenied(RequestError):
    """Who asks is known and may not use this model."""


class NotFound(RequestError):
    """No such model, version or signature."""


class NotLoaded(RequestError):
    """The model exists and has nothing to serve with now: loading, failed, or being removed."""


class NotOffered(RequestError):
    """A call or an option of a protocol that this server does not have, and why."""


class QueueFull(RequestError):
    """More rows come or wait than --max-queue allows, or the answer would come later than --max-latency."""


class QueueTimeout(RequestError):
    """The request waited for longer than its own timeout or --max-latency."""


class ResponseTooLarge(RequestError):
    """The answer is over --max-message-bytes."""


class DeadlinePassed(RequestError):
    """The caller's deadline passed while the request waited."""


class Cancelled(RequestError):
    """The caller went away while the request waited."""


class ExecutionFailed(RequestError):
    """The device or the server failed; the log has the traceback."""


STATUS: dict[type[RequestError], Code] = {
    InvalidRequest: Code.INVALID_ARGUMENT,
    Unauthenticated: Code.UNAUTHENTICATED,
    PermissionDenied: Code.PERMISSION_DENIED,
    NotFound: Code.NOT_FOUND,
    NotLoaded: Code.UNAVAILABLE,
    NotOffered: Code.UNIMPLEMENTED,
    QueueFull: Code.RESOURCE_EXHAUSTED,
    QueueTimeout: Code.UNAVAILABLE,
    ResponseTooLarge: Code.RESOURCE_EXHAUSTED,
    DeadlinePassed: Code.DEADLINE_EXCEEDED,
    Cancelled: Code.CANCELLED,
    ExecutionFailed: Code.INTERNAL,
}


def status_of(error: RequestError) -> Code:
    """The gRPC status of a refused request."""
    return STATUS[type(error)]
