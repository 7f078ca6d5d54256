"""What can go wrong on the client's side of the wire, each with its exit code."""

import grpc


class ClientError(Exception):
    """One line: the thing, the value found, the value needed, what to change."""

    exit_code = 2


class UsageError(ClientError):
    """A flag or an argument is not right."""


class CheckFailed(ClientError):
    """A measurement or a comparison came out wrong."""

    exit_code = 3


class NotFit(ClientError):
    """The environment lacks something: an optional dependency, a writable folder."""

    exit_code = 4


# The server's answer says whose fault it was: the request's, or the surroundings'.
_EXIT_CODES = {
    grpc.StatusCode.UNAUTHENTICATED: 2,
    grpc.StatusCode.PERMISSION_DENIED: 2,
    grpc.StatusCode.NOT_FOUND: 2,
    grpc.StatusCode.INVALID_ARGUMENT: 2,
    grpc.StatusCode.OUT_OF_RANGE: 2,
    grpc.StatusCode.UNIMPLEMENTED: 2,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 4,
    grpc.StatusCode.UNAVAILABLE: 4,
    grpc.StatusCode.DEADLINE_EXCEEDED: 4,
}


class ServerError(ClientError):
    """The server refused or could not be reached. `code` is the gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.exit_code = _EXIT_CODES.get(code, 3)
