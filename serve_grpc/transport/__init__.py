"""How bytes come in and go out: a batch of calls in, a batch of answers out.

A transport knows gRPC and nothing of tensors. It is what a front outside the GIL gives and what grpcio can imitate:
receiving and responding move many calls for one hand-over between threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from serve_grpc.errors import Code


class Status(NamedTuple):
    """An answer without a payload."""

    code: Code
    message: str


# (key, value) in the order sent; values are bytes for keys that end in -bin.
Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(slots=True, eq=False)
class Call:
    """One accepted unary call, or one message of a stream. It must be answered exactly once, by `respond`.

    method: "/package.Service/Method". deadline and received: seconds of time.monotonic().
    handle and sink: its transport's own, by which the answer finds its way back. peer: who called, as the transport
    says it ("ipv4:10.0.0.7:41234"), "" where it does not know.
    subject: the name in the caller's certificate, where the transport has proven one.
    cancelled: set by the transport, from its own thread, when the caller has gone; an answer is then dropped.
    """

    method: str
    payload: bytes
    deadline: float | None
    received: float
    handle: Any
    sink: "Sink"
    metadata: Metadata = ()
    cancelled: bool = False
    peer: str = ""
    subject: str = ""


Answer = tuple[Call, bytes | Status]
# Up to so many calls as soon as there is one, or none after so many seconds. One thread only.
Receive = Callable[[int, float], list[Call]]
# How a refusal looks as a message of a stream: (the request's payload, the status) -> the message.
Refusal = Callable[[bytes, Status], bytes]


class Sink(Protocol):
    """Where the answers of some calls go."""

    def respond(self, answers: Sequence[Answer]) -> None:
        """Answers calls of this sink. Any thread; never blocks on the network."""
        ...


def respond(answers: Sequence[Answer]) -> None:
    """Answers calls, whichever way they came in: one hand-over for each way."""
    if not answers:
        return
    sink = answers[0][0].sink
    if all([call.sink is sink for call, _ in answers]):  # noqa: C419 (a generator takes three times as long)
        sink.respond(answers)
        return
    by_sink: dict[int, list[Answer]] = {}
    for answer in answers:
        by_sink.setdefault(id(answer[0].sink), []).append(answer)
    for group in by_sink.values():
        group[0][0].sink.respond(group)


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

    @property
    def receivers(self) -> Sequence[Receive]:
        """Where calls come from; each is for a thread of its own."""
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


def within_limit(answer: bytes | Status, max_message_bytes: int) -> bytes | Status:
    """The answer, or the status that says that it is too large to send."""
    if isinstance(answer, Status) or len(answer) <= max_message_bytes:
        return answer
    return Status(
        Code.RESOURCE_EXHAUSTED,
        f"the response has {len(answer)} bytes, over the server's --max-message-bytes {max_message_bytes}; "
        "ask for fewer rows or outputs, or raise it",
    )
