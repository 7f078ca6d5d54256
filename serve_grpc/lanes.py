"""Which queue a request joins. A signature with a sequence has one for each length that rows are padded to: its lanes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from converters.manifest import Signature
from serve_grpc.batcher import Batcher
from serve_grpc.errors import InvalidRequest
from serve_grpc.protocol import GivenTensor
from serve_grpc.protocol.shapes import shown
from serve_grpc.validate import SignatureRules

# Of the further symbols, by name.
Sizes = tuple[tuple[str, int], ...]
# A lane stays when its rows cost at most this much of those of the next longer one.
MOST_OF_A_ROW = 0.8
# Lengths whose rules are kept: each has a few kilobytes, and there may be a million lengths.
MOST_KNOWN = 1024


class Lane(NamedTuple):
    """Where requests of one shape go, and what they must look like."""

    batcher: Batcher
    rules: SignatureRules


class Lanes(Protocol):
    """The queues of one signature of one version."""

    def lane(self, given: Sequence[GivenTensor]) -> Lane:
        """Where a request with these inputs goes. Raises InvalidRequest."""
        ...


class OneLane:
    """Of a signature whose sizes are fixed."""

    def __init__(self, batcher: Batcher) -> None:
        self._lane = Lane(batcher, batcher.program.program.rules)

    def lane(self, given: Sequence[GivenTensor]) -> Lane:  # noqa: ARG002
        """The only one."""
        return self._lane


class SequenceLanes:
    """batchers: length -> the queue of the program that takes rows up to it; one of them has the longest there is."""

    def __init__(self, declared: Signature, batchers: Mapping[int, Batcher]) -> None:
        if declared.sequence is None:
            raise TypeError(f"signature {declared.name!r} has no sequence")
        symbol = declared.sequence.symbol
        self._declared = declared
        self._sequence = declared.sequence
        self._batchers = sorted(batchers.items())
        self._shapes = {tensor.name: tensor.shape for tensor in declared.inputs if symbol in tensor.shape}
        self._known: dict[int, Lane] = {}

    def lane(self, given: Sequence[GivenTensor]) -> Lane:
        """That of the shortest program which holds the request."""
        length = self._length(given)
        lane = self._known.get(length)
        if lane is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            lane = self._known[length] = self._made(length)
        return lane

    def _made(self, length: int) -> Lane:
        fixed = self._declared.at_length(length)
        rules = SignatureRules(fixed.name, fixed.inputs, fixed.outputs, self._declared.inputs)
        return Lane(next(batcher for most, batcher in self._batchers if most >= length), rules)

    def _length(self, given: Sequence[GivenTensor]) -> int:
        """That of every input with a sequence. Inputs that are missing or wrong otherwise are the rules' to refuse."""
        first, length, most = "", self._sequence.most, self._sequence.most
        for name, _, shape, _ in given:
            needed = self._shapes.get(name)
            if needed is None:
                continue
            if len(shape) != len(needed):
                raise InvalidRequest(
                    f"input {name!r} has shape {shown(shape)}; needed: [{', '.join(map(str, needed))}]"
                )
            if not 1 <= shape[1] <= most:
                raise InvalidRequest(
                    f"input {name!r} has shape {shown(shape)}, a length of {shape[1]}; needed: 1 to {most}"
                )
            if first and shape[1] != length:
                raise InvalidRequest(
                    f"input {name!r} has a length of {shape[1]} and input {first!r} has {length}; needed: the same"
                )
            first, length = name, shape[1]
        return length


class SizedLanes:
    """lanes: the sizes of the further symbols -> where requests of these sizes go, of a signature that declares them."""

    def __init__(self, declared: Signature, lanes: Mapping[Sizes, Lanes]) -> None:
        self._declared = declared
        self._lanes = [(declared.at_sizes(dict(sizes)), each) for sizes, each in lanes.items()]

    def lane(self, given: Sequence[GivenTensor]) -> Lane:
        """That of the sizes which the inputs have. What else is wrong with them the rules refuse."""
        shapes = {tensor.name: tensor.shape for tensor in given}
        needed = {tensor.name: tensor.shape for tensor in self._declared.inputs}
        for fixed, lanes in self._lanes:
            if all(_fits(t.shape, shapes[t.name]) for t in fixed.inputs if t.name in shapes):
                return lanes.lane(given)
        if any(len(shapes[name]) != len(shape) for name, shape in needed.items() if name in shapes):
            return self._lanes[0][1].lane(given)
        has = ", ".join(
            f"{name!r} has shape {shown(shape)}" for name, shape in shapes.items() if name in needed
        )
        takes = ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in needed.items())
        sizes = "; ".join(
            f"{name} of {', '.join(map(str, each))}" for name, each in self._declared.sizes.items()
        )
        raise InvalidRequest(f"input {has}; needed: {takes} with {sizes}")


def _fits(needed: Sequence[int | str], shape: Sequence[int]) -> bool:
    """Whether a shape has every fixed size that is needed behind the batch."""
    return len(needed) == len(shape) and all(
        size == has for size, has in zip(needed[1:], shape[1:], strict=True) if isinstance(size, int)
    )


def worth_a_lane(seconds: Mapping[int, float], longer: Mapping[int, float]) -> bool:
    """Whether rows cost clearly less than in the next longer lane. Both: bucket -> seconds of one run."""
    return _row_seconds(seconds) <= MOST_OF_A_ROW * _row_seconds(longer)


def _row_seconds(seconds: Mapping[int, float]) -> float:
    return min(cost / bucket for bucket, cost in seconds.items())


def lane_name(signature: str, length: int | None, sizes: Sizes = ()) -> str:
    """predict, or of a lane predict[128], predict[k=4], predict[k=4,128]."""
    parts = [*(f"{name}={size}" for name, size in sizes), *([] if length is None else [str(length)])]
    return f"{signature}[{','.join(parts)}]" if parts else signature
