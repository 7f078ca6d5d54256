"""How bytes come in and go out: a batch of calls in, a batch of answers out.

A transport knows gRPC and nothing of tensors. It is what a front outside the GIL gives and what grpcio can imitate:
`receive` and `respond` move many calls for one hand-over between threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from serve_grpc.errors import Code


class Status(NamedTuple):
    """An answer without a payload."""

    code: Code
    message: str


@dataclass(slots=True, eq=False)
class Call:
    """One accepted unary call. It must be answered exactly once, by `Transport.respond`.

    method: "/package.Service/Method". deadline and received: seconds of time.monotonic().
    cancelled: set by the transport, from its own thread, when the caller has gone; an answer is then dropped.
    handle: the transport's own.
    """

    method: str
    payload: bytes
    deadline: float | None
    received: float
    handle: Any
    cancelled: bool = False


Answer = tuple[Call, bytes | Status]


class Drained(NamedTuple):
    """Calls accepted since the start, and how many of them got no answer although their caller still waited."""

    accepted: int
    unanswered: int


class Transport(Protocol):
    """One bound gRPC endpoint."""

    name: str

    def start(self) -> str:
        """Binds and accepts; returns the address. Raises EnvironmentUnfit when the address is taken."""
        ...

    def receive(self, most: int, timeout: float) -> list[Call]:
        """Up to `most` calls as soon as there is one, or none after `timeout` seconds. One thread only."""
        ...

    def respond(self, answers: Sequence[Answer]) -> None:
        """Answers calls. Any thread; never blocks on the network."""
        ...

    def set_health(self, service: str, serving: bool | None) -> None:
        """What grpc.health.v1 says of a service ("" is the whole server); None: unknown to it."""
        ...

    def drain(self, timeout: float) -> "Drained":
        """Refuses new calls and waits up to `timeout` seconds until the accepted ones are answered."""
        ...

    def stop(self) -> None:
        """Closes what is left. Calls that are still open are cancelled."""
        ...
