"""From the outputs of a run to the answers of its requests."""

from collections.abc import Sequence

from serve_grpc.batcher import Buffer, Slice, Work
from serve_grpc.transport import Answer

# Bytes of one output up to which pieces of a copy are cheaper than views of it.
SMALL = 1 << 16

# Requests whose last rows were in a run, and what to send for each.
Answered = tuple[list[Work], list[Answer]]


def answers(slices: Sequence[Slice], outputs: Sequence[memoryview], row_bytes: Sequence[int]) -> Answered:
    """Every request whose last rows these are, and its answer; pieces of the others are kept with them."""
    works: list[Work] = []
    found: list[Answer] = []
    single: tuple[Buffer, int] | None = (outputs[0], row_bytes[0]) if len(outputs) == 1 else None
    if single is not None and len(outputs[0]) <= SMALL:
        single = bytes(outputs[0]), row_bytes[0]
    at = 0
    for work, start, stop in slices:
        end = at + stop - start
        if single is not None:
            output, size = single
            data: Sequence[Buffer] = (output[at * size : end * size],)
        else:
            data = [outputs[i][at * row_bytes[i] : end * row_bytes[i]] for i in work.outputs]
        at = end
        if stop - start != work.rows:
            whole = joined(work, data, stop)
            if whole is None:
                continue
            data = whole
        works.append(work)
        found.append((work.call, work.encode(data)))
    return works, found


def joined(work: Work, data: Sequence[Buffer], stop: int) -> list[Buffer] | None:
    """The outputs of a request that went in pieces, once its last row is there; until then they are kept with it."""
    if work.answered:  # an earlier piece failed
        return None
    work.parts = work.parts or []
    work.parts.append([bytes(part) for part in data])  # the buffers are filled anew
    if stop != work.rows:
        return None
    return [b"".join(parts) for parts in zip(*work.parts, strict=True)]
