"""What is known of requests when they end, for those who write it down: the access log and traces.

It is gathered only where somebody listens. Neither payloads nor metadata are in it: it is small, it holds no token,
and may be kept after the answer has gone.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from serve_grpc.errors import Code
from serve_grpc.trace_context import Trace


class Run(NamedTuple):
    """One run of a bucket. Times are seconds of time.monotonic(): the batch left the queue, went to the device,
    its results were back, and the answers were handed to the transport.
    """

    signature: str
    rows: int
    bucket: int
    started: float
    launched: float
    fetched: float
    answered: float


class Request(NamedTuple):
    """One request. received and started: seconds of time.monotonic(); started 0: it was not taken from a queue.

    A request larger than any bucket goes in several runs: started is that of the first.
    """

    method: str
    protocol: str
    peer: str
    trace: Trace
    received: float
    started: float
    rows: int


class Ended(NamedTuple):
    """Requests that ended together. version 0, signature "": not known, or none. run: the last one; None without one.

    model may be any text: that of a request for a model that is not here.
    """

    model: str
    version: int
    signature: str
    code: Code
    reason: str
    at: float
    run: Run | None
    requests: Sequence[Request]


# Called on the threads that answer: must be quick, must not block, must not raise.
Listener = Callable[[Ended], None]
