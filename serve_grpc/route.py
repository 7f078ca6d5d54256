"""Where a request goes and how its answer is made: what requests that differ only in their data have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from serve_grpc.batcher import Batcher, Buffer, Work
from serve_grpc.protocol import Inference
from serve_grpc.serving import Serving
from serve_grpc.transport import Call
from serve_grpc.validate import SignatureRules


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Good for as long as the model answers with the same versions.

    rows: of the request that it was made for. timeout: seconds in the queue.
    """

    batcher: Batcher
    protocol: str
    rows: int
    outputs: Sequence[int]
    encode: Callable[[Sequence[Buffer]], bytes]
    urgent: bool
    timeout: float

    def work(self, call: Call, data: Sequence[Buffer]) -> Work:
        """A request of this kind. data: the bytes of each input's rows."""
        expires = call.received + self.timeout
        return Work(call, self.protocol, data, self.rows, self.outputs, self.encode, self.urgent, expires)


class Routes:
    """Makes them. max_latency: seconds in the queue for requests that do not say."""

    def __init__(self, serving: Serving, max_message_bytes: int, max_latency: float) -> None:
        self._serving = serving
        self._max_message_bytes = max_message_bytes
        self._max_latency = max_latency

    def route(self, protocol: str, inference: Inference) -> tuple[Route, Sequence[Buffer]]:
        """Where the request goes, and the bytes of its inputs. Raises RequestError for whatever is wrong with it."""
        version, lanes = self._serving.find(
            inference.model, inference.version, inference.signature, inference.label
        )
        batcher, rules = lanes.lane(inference.inputs)
        if inference.dtypes is not None:
            rules.check_dtypes(inference.dtypes)
        data, rows = rules.buffers(inference.inputs)
        outputs = rules.chosen(inference.outputs)
        rules.check_response(rows, outputs, self._max_message_bytes)
        encode = _encoder(inference, version.info.version, rules, outputs, rows)
        timeout = (
            self._max_latency if inference.timeout is None else min(inference.timeout, self._max_latency)
        )
        urgent = inference.priority > 0
        return Route(batcher, protocol, rows, outputs, encode, urgent, timeout), data


def _encoder(
    inference: Inference, version: int, rules: SignatureRules, outputs: Sequence[int], rows: int
) -> Callable[[Sequence[Buffer]], bytes]:
    """What makes the response of the bytes of its outputs' rows."""
    infos = [rules.outputs[at] for at in outputs]
    shapes = [(rows, *map(int, info.shape[1:])) for info in infos]
    frame = inference.frame and inference.frame(inference.model, version, infos, shapes)
    if frame is not None:
        if len(frame) == 2:
            head, tail = frame
            return lambda data: b"".join((head, data[0], tail))
        return lambda data: b"".join(
            piece for pair in zip(frame, (*data, b""), strict=True) for piece in pair
        )
    response = inference.encode
    if response is None:
        raise TypeError("an Inference has encode or frame")
    dtypes = [rules.output_dtypes[at] for at in outputs]

    def encode(data: Sequence[Buffer]) -> bytes:
        arrays = [
            np.frombuffer(buffer, dtype).reshape(shape)
            for buffer, dtype, shape in zip(data, dtypes, shapes, strict=True)
        ]
        return response(inference.model, version, infos, arrays)

    return encode
