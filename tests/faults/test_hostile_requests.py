"""Requests made to cost the server more than they cost their sender, or to be taken for what they are not."""

import json
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from converters.manifest import TensorInfo
from jaxport.wire import open_inference_pb2 as oip
from jaxport.wire import prediction_pb2 as pb
from jaxport.wire import tensorflow_serving_pb2 as tfs
from serve_grpc.errors import Code, InvalidRequest
from serve_grpc.protocol import rest
from serve_grpc.protocol.json_numbers import parsed
from serve_grpc.transport import Status
from tests.faults.in_process import MAX_MESSAGE_BYTES, EchoServer
from tests.server_process import request

PREDICT = "/jaxport.v1.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"
TF_PREDICT = "/tensorflow.serving.PredictionService/Predict"
# What a refusal may take; the same request took minutes, with everyone else waiting.
SOON = 1.0


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as echo:
        yield echo


def refused(server: EchoServer, method: str, payload: bytes) -> Status:
    """How the server refuses it, which is soon and short."""
    started = time.process_time()
    [answer] = server.ask([(method, payload)])
    assert isinstance(answer, Status)
    assert time.process_time() - started < SOON
    assert len(answer.message) <= 2000
    return answer


def test_a_version_that_wants_the_same_bytes_narrowed_gets_them_narrowed(server: EchoServer) -> None:
    """A head learned where int64 is taken as it is must not skip the check once the model takes int32."""
    values = np.array([[1, -2]], np.int64)
    payload = request("wide", {"n": values}).SerializeToString()
    for _ in range(4):
        server.ask([(PREDICT, payload)])
    server.serve("wide", 2, {"n": TensorInfo("n", "int32", ("b", 2))})
    for _ in range(3):
        [answer] = server.ask([(PREDICT, payload)])
        assert isinstance(answer, bytes)
        assert pb.PredictResponse.FromString(answer).outputs[0].data == values.astype(np.int32).tobytes()
    too_large = request("wide", {"n": np.array([[2**40, 1]])}).SerializeToString()
    assert refused(server, PREDICT, too_large).code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("field", [15, 1])
def test_heads_that_are_large_or_many_are_not_kept(server: EchoServer, field: int) -> None:
    """Of an unknown field, or of a name that another one replaces: each time twice, so that it would be learned."""
    junk = bytes([field << 3 | 2, 0x80, 0x80, 0x10]) + b"m" * 2**18  # 256 KiB
    tracemalloc.start()
    try:
        for rows in range(1, 41):
            x = np.ones((rows, 2), np.float32)
            payload = junk + request("echo", {"x": x}).SerializeToString()
            answers = server.ask([(PREDICT, payload)] * 2)
            assert [type(answer) for answer in answers] == [bytes, bytes]
        assert tracemalloc.get_traced_memory()[0] < 2**21
    finally:
        tracemalloc.stop()


def test_data_is_not_kept_with_its_head(server: EchoServer) -> None:
    tracemalloc.start()
    try:
        for rows in range(60, 100):
            payload = request("large", {"page": np.ones((rows, 4096), np.uint8)}).SerializeToString()
            answers = server.ask([(PREDICT, payload)] * 3)
            assert {type(answer) for answer in answers} == {bytes}
        del payload, answers
        assert tracemalloc.get_traced_memory()[0] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [65, 60_000])
def test_a_shape_of_many_large_sizes(server: EchoServer, count: int) -> None:
    sizes = [2**62] * count
    typed = oip.ModelInferRequest(model_name="echo")
    tensor = typed.inputs.add(name="x", datatype="FP32", shape=sizes)
    tensor.contents.fp32_contents.append(1)
    assert refused(server, INFER, typed.SerializeToString()).code is Code.INVALID_ARGUMENT
    filled = tfs.PredictRequest(model_spec=tfs.ModelSpec(name="echo"))
    filled.inputs["x"].dtype = tfs.DT_FLOAT
    filled.inputs["x"].tensor_shape.dim.extend([tfs.TensorShape.Dim(size=size) for size in sizes])
    filled.inputs["x"].float_val.append(bytes(4))
    assert refused(server, TF_PREDICT, filled.SerializeToString()).code is Code.INVALID_ARGUMENT
    plain = pb.PredictRequest(model="echo", inputs=[pb.Tensor(name="x", dtype="float32", shape=sizes)])
    assert refused(server, PREDICT, plain.SerializeToString()).code is Code.INVALID_ARGUMENT


def test_many_inputs_that_are_each_filled_with_one_value(server: EchoServer) -> None:
    """Ten kilobytes that would become a gigabyte."""
    message = tfs.PredictRequest(model_spec=tfs.ModelSpec(name="echo"))
    for number in range(300):
        tensor = message.inputs[f"x{number}"]
        tensor.dtype = tfs.DT_FLOAT
        tensor.tensor_shape.dim.add(size=MAX_MESSAGE_BYTES // 4 - 8)
        tensor.float_val.append(bytes(4))
    tracemalloc.start()
    try:
        answer = refused(server, TF_PREDICT, message.SerializeToString())
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_MESSAGE_BYTES
    finally:
        tracemalloc.stop()
    assert answer.code is Code.INVALID_ARGUMENT
    assert "--max-message-bytes" in answer.message


@pytest.mark.parametrize("digits", [20, 5000])
def test_a_version_of_many_digits(server: EchoServer, digits: int) -> None:
    message = oip.ModelInferRequest(model_name="echo", model_version="9" * digits)
    assert refused(server, INFER, message.SerializeToString()).code is Code.NOT_FOUND


@pytest.mark.parametrize("name", ["m" * 500_000, "é" * 200_000])
def test_a_name_of_megabytes_is_not_sent_back(server: EchoServer, name: str) -> None:
    assert refused(server, PREDICT, pb.PredictRequest(model=name).SerializeToString()).code is Code.NOT_FOUND
    odd = pb.PredictRequest(model="echo", outputs=[name], inputs=[pb.Tensor(name=name)])
    assert refused(server, PREDICT, odd.SerializeToString()).code is Code.INVALID_ARGUMENT


def test_an_object_of_many_keys_with_one_twice() -> None:
    body = json.dumps({f"k{number}": 0 for number in range(60_000)}).encode()[:-1] + b',"z":1,"z":2}'
    started = time.process_time()
    with pytest.raises(InvalidRequest, match="'z' twice"):
        parsed(body)
    assert time.process_time() - started < SOON


def test_json_nested_deep_is_refused(server: EchoServer) -> None:
    for body in (
        b"[" * 100_000,
        b'{"instances":' * 50_000,
        b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ):
        [answer] = server.admit([rest.Prediction("echo", 0, "", body).read])
        assert isinstance(answer, Status)
        assert answer.code is Code.INVALID_ARGUMENT
