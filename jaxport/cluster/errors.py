"""What can go wrong between here and a cluster, each in one line with its exit code."""

from jaxport.errors import CheckFailed, ClientError, NotFit, UsageError

__all__ = ["CheckFailed", "ClientError", "Expired", "Forbidden", "JobEnded", "NotFit", "NotThere", "Taken",
           "Unreachable", "UsageError"]  # fmt: skip


class Unreachable(NotFit):
    """The API does not answer, or says that it cannot just now: the same question may be answered later."""


class Forbidden(NotFit):
    """The API knows who asks, and that they may not."""


class NotThere(UsageError):
    """No such object, namespace or kind."""


class Taken(UsageError):
    """An object of that name is there, or its field is somebody else's."""


class Expired(ClientError):
    """The version from which to watch is older than what the API keeps: list again."""


class JobEnded(ClientError):
    """A Job that is over without being complete. exit_code: what it ended with, in this project's terms."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
