"""Requests that begin like one before are not parsed again (serve_grpc/heads.py): they get what parsing would give."""

from collections.abc import Iterator

import numpy as np
import pytest

from jaxport.wire import open_inference_pb2 as oip
from jaxport.wire import prediction_pb2 as pb
from jaxport.wire import tensorflow_serving_pb2 as tfs
from serve_grpc.heads import Heads
from serve_grpc.protocol import Inference
from serve_grpc.transport import Status
from tests.faults import corpus
from tests.faults.corpus import INFER, PREDICT, STREAM_INFER, TF_PREDICT
from tests.faults.in_process import EchoServer
from tests.faults.mutate import BYTES, fields, joined
from tests.server_process import request, tensor

X = np.array([[1.5, -2.0]], np.float32)
DATA = X.tobytes()
OTHER = np.array([[7, 9]], np.float32).tobytes()
SIGNALLING = np.array([0x7F800001, 0xFFBFFFFF], "<u4").tobytes()  # NaNs that a conversion would make quiet


@pytest.fixture(scope="module")
def server() -> Iterator[EchoServer]:
    with EchoServer() as echo:
        yield echo


def plain(**fields: object) -> bytes:
    return request("echo", {"x": X}, **fields).SerializeToString()


def with_data_twice(first: bytes, last: bytes) -> bytes:
    """One tensor whose data comes twice; the last one wins."""
    given = pb.Tensor(name="x", dtype="float32", shape=(1, 2), data=first).SerializeToString()
    given += pb.Tensor(data=last).SerializeToString()
    return pb.PredictRequest(model="echo").SerializeToString() + joined([(2, BYTES, given)])


def moved_last(payload: bytes, number: int) -> bytes:
    """With a field that would stand elsewhere behind all others."""
    parts = fields(payload) or []
    return joined([p for p in parts if p[0] != number] + [p for p in parts if p[0] == number])


def contents(**field: object) -> bytes:
    message = oip.ModelInferRequest(model_name="echo")
    message.inputs.add(name="x", datatype="FP32", shape=(1, 2)).contents.MergeFrom(
        oip.InferTensorContents(**field)  # type: ignore[arg-type]
    )
    return message.SerializeToString()


def two_raw(first: bytes, second: bytes) -> bytes:
    """As many contents as inputs, of which there are two of one name."""
    message = oip.ModelInferRequest(model_name="echo", raw_input_contents=[first, second])
    for _ in range(2):
        message.inputs.add(name="x", datatype="FP32", shape=(1, 2))
    return message.SerializeToString()


TYPED = contents(fp32_contents=[1.5, -2.0])
INPUTS = tfs.PredictRequest.DESCRIPTOR.fields_by_name["inputs"].number
# what could fool it: (method, the payload that comes first, the one that follows and has its length)
PAIRS = {
    "other data": (PREDICT, plain(), plain()[:-8] + OTHER),
    "data that stands in an unknown field too": (
        PREDICT,
        plain() + joined([(99, BYTES, DATA)]),
        plain() + joined([(99, BYTES, OTHER)]),
    ),
    "data that is a name too": (
        PREDICT,
        pb.PredictRequest(
            model="echo", inputs=[tensor("x", X, data=b"ABCDABCD")], outputs=["ABCDABCD"]
        ).SerializeToString(),
        pb.PredictRequest(
            model="echo", inputs=[tensor("x", X, data=b"ABCDABCD")], outputs=["y" + "\0" * 7]
        ).SerializeToString(),
    ),
    "data of one byte over and over": (PREDICT, plain()[:-8] + b"\x08" * 8, plain()[:-9] + b"\x07" * 9),
    "data twice, the last one other": (PREDICT, with_data_twice(OTHER, DATA), with_data_twice(OTHER, OTHER)),
    "data twice, the first one other": (PREDICT, with_data_twice(DATA, DATA), with_data_twice(OTHER, DATA)),
    "another priority": (PREDICT, plain(priority=1), plain(priority=2)),
    "another version": (PREDICT, plain(version=1), plain(version=2)),
    "another label": (PREDICT, plain(label="stable"), plain(label="steady")),
    "another output": (PREDICT, plain(outputs=["y"]), plain(outputs=["z"])),
    "another time in the queue": (PREDICT, plain(queue_timeout_ms=9e3), plain(queue_timeout_ms=-1)),
    "the model named last": (PREDICT, moved_last(plain(), 1), moved_last(plain(), 1)[:-4] + b"tcho"),
    "another input": (PREDICT, plain(), plain().replace(b"\x01x", b"\x01z")),
    "another shape, as long": (
        PREDICT,
        plain(),
        pb.PredictRequest(model="echo", inputs=[tensor("x", X, shape=(2, 1))]).SerializeToString(),
    ),
    "one input, then two": (
        PREDICT,
        plain() + plain(),
        plain() + plain()[:-8] + OTHER,
    ),
    "no rows": (
        PREDICT,
        request("echo", {"x": X[:0]}).SerializeToString(),
        request("echo", {"x": X[:0]}).SerializeToString(),
    ),
    "int64 that fits int32 and one that does not": (
        PREDICT,
        request("tokens", {"tokens": np.zeros((1, 8), np.int64)}).SerializeToString(),
        request("tokens", {"tokens": np.full((1, 8), 2**40)}).SerializeToString(),
    ),
    "bytes that are bool and that are not": (
        PREDICT,
        request("flags", {"b": np.ones((1, 3), bool)}).SerializeToString(),
        request("flags", {"b": np.ones((1, 3), bool)}).SerializeToString()[:-1] + b"\2",
    ),
    "another id": (
        INFER,
        corpus.open_inference("echo", True, id="one"),
        corpus.open_inference("echo", True, id="two"),
    ),
    "the id last": (
        INFER,
        moved_last(corpus.open_inference("echo", True, id="one"), 3),
        moved_last(corpus.open_inference("echo", True, id="two"), 3),
    ),
    "typed contents": (INFER, TYPED, TYPED[:-8] + OTHER),
    "typed contents, NaNs that signal": (INFER, TYPED, TYPED[:-8] + SIGNALLING),
    "typed contents with an unknown field": (
        INFER,
        contents(fp32_contents=[1.5]) + joined([(99, BYTES, DATA)]),
        contents(fp32_contents=[1.5]) + joined([(99, BYTES, OTHER)]),
    ),
    "small numbers of one byte each": (
        INFER,
        corpus.open_inference("bytes", False),
        corpus.open_inference("bytes", False)[:-1] + b"\x7f",
    ),
    "a number that needs two bytes": (
        INFER,
        corpus.open_inference("bytes", False)[:-2] + b"\x01\x01",
        corpus.open_inference("bytes", False)[:-2] + b"\x81\x01",
    ),
    "two contents of one name": (INFER, two_raw(OTHER, DATA), two_raw(OTHER, OTHER)),
    "a message of a stream": (
        STREAM_INFER,
        corpus.open_inference("echo", True, id="one"),
        corpus.open_inference("echo", True, id="two"),
    ),
    "one value that fills the shape": (
        TF_PREDICT,
        corpus.tensorflow("bytes", True)[:-10] + b"\x0a" * 10,
        corpus.tensorflow("bytes", True)[:-12] + b"\x0b" * 12,
    ),
    "an entry of the map twice": (
        TF_PREDICT,
        corpus.tensorflow("echo", True) * 2,
        corpus.tensorflow("echo", True) + corpus.tensorflow("echo", True)[:-16] + DATA + OTHER,
    ),
    "content behind values": (
        TF_PREDICT,
        moved_last(corpus.tensorflow("echo", False), INPUTS),
        moved_last(corpus.tensorflow("echo", True), INPUTS),
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_it_gets_what_parsing_gives(server: EchoServer, what: str) -> None:
    method, first, second = PAIRS[what]
    for order in ([first, first, first, second, first, second], [second] * 3 + [first, second, first]):
        for payload in order:
            [answer] = server.ask([(method, payload)])
            assert answer == server.fresh(method, payload)


def answer_data(answer: bytes | Status) -> bytes:
    assert isinstance(answer, bytes), answer
    return oip.ModelInferResponse.FromString(answer).raw_output_contents[0]


def test_typed_floats_keep_their_bits(server: EchoServer) -> None:
    """As raw ones do, parsed or not."""
    payload = TYPED[:-8] + SIGNALLING
    assert [answer_data(a) for a in server.ask([(INFER, payload)] * 4)] == [SIGNALLING] * 4
    unknown = contents(fp32_contents=[1.5, 2.5])
    inner = fields(fields(fields(unknown)[1][2])[-1][2])  # type: ignore[index, arg-type]
    assert inner is not None
    inner.append((77, BYTES, SIGNALLING))
    tensor_fields = fields(fields(unknown)[1][2])  # type: ignore[index, arg-type]
    assert tensor_fields is not None
    tensor_fields[-1] = (5, BYTES, joined(inner))
    odd = joined([(1, BYTES, b"echo"), (5, BYTES, joined(tensor_fields))])
    assert [answer_data(a) for a in server.ask([(INFER, odd)] * 4)] == [
        np.array([1.5, 2.5], np.float32).tobytes()
    ] * 4


@pytest.mark.parametrize(
    "method, payload",
    [(PREDICT, plain()), (INFER, corpus.open_inference("echo", True)), (INFER, TYPED), (TF_PREDICT, corpus.tensorflow("echo", True))],
)  # fmt: skip
def test_ordinary_requests_are_parsed_twice_at_most(server: EchoServer, method: str, payload: bytes) -> None:
    """Else the tests above say nothing. The third is found, with other data."""
    heads = Heads(lambda given: server.methods[method](given, server.catalog))
    for _ in range(2):
        assert heads.find(payload) is None
        inference = server.methods[method](payload, server.catalog)
        assert isinstance(inference, Inference)
        heads.learn(payload, inference)
    head = heads.find(payload[:-8] + OTHER)
    assert head is not None
    assert len(head.head) == len(payload) - len(inference.inputs[0].data)
