"""Which trace a request belongs to: W3C Trace Context (https://www.w3.org/TR/trace-context/) in its metadata."""

import random
import re
from typing import NamedTuple

from serve_grpc.transport import Metadata

# Versions after 00 may add fields at the end; ff is forbidden.
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
LONGEST_PARENT = 200
LONGEST_STATE = 512


class Trace(NamedTuple):
    """trace_id, parent_id: hex digits, "" for none. sampled: somebody wants its spans. state: tracestate as it came."""

    trace_id: str = ""
    parent_id: str = ""
    sampled: bool = False
    state: str = ""


NO_TRACE = Trace()


def trace_of(metadata: Metadata) -> Trace:
    """The caller's trace; NO_TRACE without a `traceparent`, or with one that is not well-formed."""
    for key, value in metadata:
        if key == "traceparent":
            return _parse(value, metadata)
    return NO_TRACE


class Sampler:
    """Decides as the caller did; a request without a trace begins one with probability `ratio`."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def __call__(self, metadata: Metadata) -> Trace:
        trace = trace_of(metadata)
        if not trace.trace_id and random.random() < self._ratio:  # noqa: S311 (no secret)
            return Trace(f"{random.getrandbits(128) or 1:032x}", "", True)
        return trace


def _parse(value: str | bytes, metadata: Metadata) -> Trace:
    if not isinstance(value, str) or len(value) > LONGEST_PARENT:
        return NO_TRACE
    match = TRACEPARENT.fullmatch(value.strip())
    if match is None:
        return NO_TRACE
    trace_id, parent_id, flags = match.groups()
    if (
        not int(trace_id, 16)
        or not int(parent_id, 16)
        or (value.startswith("00") and len(value.strip()) != 55)
    ):
        return NO_TRACE
    states = [text for key, text in metadata if key == "tracestate" and isinstance(text, str)]
    state = ",".join(states)
    return Trace(trace_id, parent_id, bool(int(flags, 16) & 1), state if len(state) <= LONGEST_STATE else "")
