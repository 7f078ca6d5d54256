"""The Open Inference Protocol: answers, streams, descriptions, and a message for everything that is refused.

tests/conformance asks the same server with the clients people have.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.wire import open_inference_pb2 as pb
from serve_grpc.protocol.open_inference import NOT_OFFERED
from serve_grpc.protocol.open_inference_types import DATATYPES
from tests.server_process import ServerProcess, eventually

SERVICE = "/inference.GRPCInferenceService/"
X = np.arange(8, dtype=np.float32).reshape(2, 4)
E = np.array([[1, np.nan], [-0.0, np.inf]], np.float32)
H, KEEP = np.zeros((2, 3), jnp.bfloat16), np.array([True, False])
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT32": "int_contents", "FP32": "fp32_contents",
    "INT64": "int64_contents", "UINT32": "uint_contents", "FP64": "fp64_contents",
}  # fmt: skip


def call(server: ServerProcess, name: str, request: Any, response: Any) -> Any:
    method = server.channel.unary_unary(
        SERVICE + name,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )
    return method(request, timeout=20)


def raw(model: str, inputs: dict[str, np.ndarray], **fields: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, **fields)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=DATATYPES[array.dtype.name], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def typed(model: str, name: str, datatype: str, shape: Sequence[int], field: str, values: Sequence) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    getattr(tensor.contents, field).extend(values)
    return request


def infer(server: ServerProcess, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    return call(server, "ModelInfer", request, pb.ModelInferResponse)


def with_parameter(request: pb.ModelInferRequest, name: str, **value: Any) -> pb.ModelInferRequest:
    request.parameters[name].CopyFrom(pb.InferParameter(**value))
    return request


def test_the_answer_is_raw_and_says_whose_it_is(server: ServerProcess) -> None:
    answer = infer(server, raw("echo", {"x": E}, id="a7", model_version="1"))
    assert (answer.model_name, answer.model_version, answer.id) == ("echo", "1", "a7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("y", "FP32", [2, 2])
    assert list(answer.raw_output_contents) == [E.tobytes()]


def test_outputs_come_in_the_order_they_were_asked_for(server: ServerProcess) -> None:
    request = raw("mixed", {"keep": KEEP, "h": H})
    assert [output.name for output in infer(server, request).outputs] == ["same", "kept"]
    request.outputs.add(name="kept")
    request.outputs.add(name="same")
    answer = infer(server, request)
    assert [(o.name, o.datatype) for o in answer.outputs] == [("kept", "INT32"), ("same", "BF16")]
    assert list(answer.raw_output_contents) == [np.array([11, -11], np.int32).tobytes(), H.tobytes()]


def test_requests_that_differ_only_in_their_numbers_get_their_own_answers(server: ServerProcess) -> None:
    for at in range(6):
        x = np.full((2, 2), at, np.float32)
        for request in (
            raw("echo", {"x": x}, id="same"),
            raw("echo", {"x": x}, id=f"no {at}"),
            typed("echo", "x", "FP32", [2, 2], "fp32_contents", x.ravel().tolist()),
        ):
            answer = infer(server, request)
            assert (answer.id, list(answer.raw_output_contents)) == (request.id, [x.tobytes()])


def test_typed_contents_are_the_same_numbers(server: ServerProcess) -> None:
    answer = infer(server, typed("echo", "x", "FP32", [2, 2], "fp32_contents", E.ravel().tolist()))
    assert list(answer.raw_output_contents) == [E.tobytes()]
    tokens = list(range(8))
    both = [
        infer(server, typed("tokens", "tokens", datatype, [1, 8], FIELDS[datatype], tokens))
        for datatype in ("INT32", "INT64")
    ]
    assert both[0].raw_output_contents == both[1].raw_output_contents


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", {"uint64_param": 1}),
        ("priority", {"int64_param": 7}),
        ("timeout", {"int64_param": 5_000_000}),
        ("signature", {"string_param": "predict"}),
        ("triton_enable_empty_final_response", {"bool_param": True}),
        ("sequence_id", {"int64_param": 3}),
        ("of_the_callers_own", {"double_param": 0.5}),
    ],
)
def test_a_parameter_is_taken(server: ServerProcess, name: str, value: dict) -> None:
    request = with_parameter(raw("echo", {"x": E}), name, **value)
    assert list(infer(server, request).raw_output_contents) == [E.tobytes()]


def mixed_up() -> pb.ModelInferRequest:
    request = typed("echo", "x", "FP32", [2, 2], "fp32_contents", [1, 2, 3, 4])
    request.raw_input_contents.append(E.tobytes())
    return request


def asking(name: str, **parameter: Any) -> pb.ModelInferRequest:
    request = raw("echo", {"x": E})
    output = request.outputs.add(name="y")
    output.parameters[name].CopyFrom(pb.InferParameter(**parameter))
    return request


def changed(**fields: Any) -> pb.ModelInferRequest:
    request = raw("echo", {"x": E})
    for name, value in fields.items():
        if name == "shape":
            del request.inputs[0].shape[:]
            request.inputs[0].shape.extend(value)
        elif name == "data":
            request.raw_input_contents[:] = value
        elif name == "outputs":
            request.outputs.extend(pb.ModelInferRequest.RequestedOutput(name=each) for each in value)
        else:
            setattr(request.inputs[0], name, value)
    return request


def in_shared_memory() -> pb.ModelInferRequest:
    request = changed(data=[])
    request.inputs[0].parameters["shared_memory_region"].string_param = "mine"
    return request


# what is wrong: (request, status, what the message says)
REFUSED = {
    "model": (raw("nope", {"x": E}), NOT_FOUND, ["'nope'", "echo, mixed"]),
    "version": (raw("echo", {"x": E}, model_version="9"), NOT_FOUND, ["version 9"]),
    "version 0": (raw("echo", {"x": E}, model_version="0"), NOT_FOUND, ["'0'", "begin at 1"]),
    "label": (raw("echo", {"x": E}, model_version="canary"), NOT_FOUND, ["label 'canary'"]),
    "negative version": (raw("echo", {"x": E}, model_version="-1"), NOT_FOUND, ["'-1'"]),
    "signature": (
        with_parameter(raw("echo", {"x": E}), "signature", string_param="train"),
        NOT_FOUND,
        ["'train'"],
    ),
    "input name": (raw("echo", {"z": E}), INVALID, ["input 'z'", "x (float32 [b, 2])"]),
    "output name": (changed(outputs=["z"]), INVALID, ["output 'z'"]),
    "datatype": (changed(datatype="FP99"), INVALID, ["'x'", "'FP99'", "FP32"]),
    "numpy's dtype": (changed(datatype="float32"), INVALID, ["'x'", "'float32'", "FP32"]),
    "no datatype": (changed(datatype=""), INVALID, ["'x'", "''"]),
    "another datatype": (changed(datatype="INT32"), INVALID, ["'x'", "int32", "float32"]),
    "strings": (changed(datatype="BYTES"), INVALID, ["'x'", "BYTES", "no strings"]),
    "negative shape": (changed(shape=[-2, 2]), INVALID, ["'x'", "batch of -2"]),
    "huge shape": (changed(shape=[2**62, 2]), INVALID, ["'x'", "16 bytes", str(2**65)]),
    "rank": (changed(shape=[4]), INVALID, ["'x'", "[4]", "[b, 2]"]),
    "short data": (changed(data=[b"1234567"]), INVALID, ["'x'", "7 bytes", "16"]),
    "too many data": (changed(data=[E.tobytes()] * 2), INVALID, ["2 raw_input_contents", "1 inputs"]),
    "no data": (changed(data=[]), INVALID, ["'x'", "no data", "raw_input_contents or contents"]),
    "raw and typed": (mixed_up(), INVALID, ["'x'", "contents", "raw_input_contents", "one of them"]),
    "no inputs": (pb.ModelInferRequest(model_name="echo"), INVALID, ["'x'", "missing"]),
    "too few elements": (
        typed("echo", "x", "FP32", [2, 2], "fp32_contents", [1.0] * 3),
        INVALID,
        ["'x'", "3 elements", "[2, 2]"],
    ),
    "elements of a negative shape": (
        typed("echo", "x", "FP32", [-2, -2], "fp32_contents", [1.0] * 4),
        INVALID,
        ["'x'", "[-2, -2]"],
    ),
    "another field": (
        typed("echo", "x", "FP32", [2, 2], "fp64_contents", [1.0] * 4),
        INVALID,
        ["'x'", "fp64_contents", "needed: fp32_contents"],
    ),
    "typed bfloat16": (
        typed("mixed", "h", "BF16", [1, 3], "fp32_contents", [1.0] * 3),
        INVALID,
        ["'h'", "BF16", "raw_input_contents only"],
    ),
    "typed strings": (
        typed("echo", "x", "BYTES", [1], "bytes_contents", [b"text"]),
        INVALID,
        ["'x'", "BYTES", "no strings"],
    ),
    "int8 of 128": (
        typed("echo", "x", "INT8", [1, 2], "int_contents", [-128, 128]),
        INVALID,
        ["'x'", "128 at element 1", "int8", "-128 to 127"],
    ),
    "uint16 of 65536": (
        typed("echo", "x", "UINT16", [1, 1], "uint_contents", [65536]),
        INVALID,
        ["65536", "uint16", "0 to 65535"],
    ),
    "priority as text": (
        with_parameter(raw("echo", {"x": E}), "priority", string_param="high"),
        INVALID,
        ["'priority'", "string_param", "uint64_param"],
    ),
    "negative timeout": (
        with_parameter(raw("echo", {"x": E}), "timeout", int64_param=-1),
        INVALID,
        ["'timeout'", "-1"],
    ),
    "a parameter of Triton's own": (
        with_parameter(raw("echo", {"x": E}), "triton_secret", bool_param=True),
        INVALID,
        ["'triton_secret'", "triton_enable_empty_final_response"],
    ),
    "classification": (asking("classification", int64_param=3), UNIMPLEMENTED, ["'y'", "classification"]),
    "output in shared memory": (
        asking("shared_memory_region", string_param="mine"),
        UNIMPLEMENTED,
        ["'y'", "shared memory"],
    ),
    "input in shared memory": (in_shared_memory(), UNIMPLEMENTED, ["'x'", "shared memory"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_request_has_its_own_status_and_message(server: ServerProcess, what: str) -> None:
    request, code, says = REFUSED[what]
    with pytest.raises(grpc.RpcError) as refused:
        infer(server, request)
    details = refused.value.details() or ""
    assert refused.value.code() is code, details
    assert [part for part in says if part not in details] == [], details
    assert "\n" not in details


def test_a_truncated_message(server: ServerProcess) -> None:
    cut = raw("echo", {"x": E}).SerializeToString()[:-3]
    with pytest.raises(grpc.RpcError) as refused:
        server.channel.unary_unary(f"{SERVICE}ModelInfer")(cut, timeout=20)
    assert refused.value.code() is INVALID
    assert f"{len(cut)} bytes that are no inference.ModelInferRequest" in (refused.value.details() or "")


def test_a_stream_answers_in_order_and_lives_through_refusals(server: ServerProcess) -> None:
    call = server.channel.stream_stream(
        f"{SERVICE}ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )

    def requests() -> Iterator[pb.ModelInferRequest]:
        for at in range(9):
            x = np.full((1, 2), at, np.float32)
            yield raw("nope" if at % 3 == 1 else "echo", {"x": x}, id=str(at))

    answers = list(call(requests(), timeout=20))
    assert [answer.infer_response.id for answer in answers] == [str(at) for at in range(9)]
    for at, answer in enumerate(answers):
        if at % 3 == 1:
            assert "'nope'" in answer.error_message
        else:
            assert answer.error_message == ""
            assert answer.infer_response.parameters["triton_final_response"].bool_param
            x = np.full((1, 2), at, np.float32)
            assert list(answer.infer_response.raw_output_contents) == [x.tobytes()]


def test_the_server_describes_itself(server: ServerProcess) -> None:
    assert call(server, "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
    assert call(server, "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
    said = call(server, "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)
    assert said.name == "jaxport" and said.version and "statistics" in said.extensions
    ready = [
        call(server, "ModelReady", pb.ModelRequest(name=name, version=version), pb.ModelReadyResponse).ready
        for name, version in (("echo", ""), ("echo", "1"), ("echo", "2"), ("nope", ""), ("echo", "canary"))
    ]
    assert ready == [True, True, False, False, False]


def test_metadata_and_configuration_agree(server: ServerProcess) -> None:
    asked = pb.ModelRequest(name="mixed")
    metadata = call(server, "ModelMetadata", asked, pb.ModelMetadataResponse)
    config = call(server, "ModelConfig", asked, pb.ModelConfigResponse).config
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("mixed", ["1"], config.platform)
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("h", "BF16", [-1, 3]),
        ("keep", "BOOL", [-1]),
    ]
    assert 1 < config.max_batch_size <= 16
    for described, configured in ((metadata.inputs, config.input), (metadata.outputs, config.output)):
        assert [(t.name, f"TYPE_{t.datatype}", list(t.shape[1:])) for t in described] == [
            (t.name, pb.DataType.Name(t.data_type), list(t.dims)) for t in configured
        ]
    assert config.parameters["signatures"].string_value == "predict"


def test_statistics_count_requests_rows_and_runs(server: ServerProcess) -> None:
    def read() -> pb.ModelStatistics:
        asked = pb.ModelRequest(name="tokens", version="1")
        (entry,) = call(server, "ModelStatistics", asked, pb.ModelStatisticsResponse).model_stats
        return entry

    before = read()
    request = raw("tokens", {"tokens": np.zeros((3, 8), np.int32)})
    for _ in range(4):
        infer(server, request)
    with pytest.raises(grpc.RpcError):
        infer(server, raw("tokens", {"tokens": np.zeros((3, 7), np.int32)}))
    # The last answer is on its way before it is counted.
    eventually(
        lambda: read().inference_stats.success.count >= before.inference_stats.success.count + 4, "4 counted"
    )
    eventually(lambda: read().execution_count >= before.execution_count + 4, "4 runs counted")
    after = read()
    assert (after.name, after.version) == ("tokens", "1")
    assert after.inference_count - before.inference_count == 12
    assert after.execution_count - before.execution_count == 4
    assert after.last_inference > before.last_inference
    for stage, count in {
        "success": 4, "fail": 1, "queue": 4, "compute_input": 4, "compute_infer": 4, "compute_output": 4
    }.items():  # fmt: skip
        was, now = getattr(before.inference_stats, stage), getattr(after.inference_stats, stage)
        assert now.count - was.count == count, stage
        assert now.ns > was.ns, stage
    assert sum(batch.compute_infer.count for batch in after.batch_stats) == after.execution_count
    everything = call(server, "ModelStatistics", pb.ModelRequest(), pb.ModelStatisticsResponse)
    assert [entry.name for entry in everything.model_stats] == ["echo", "mixed", "mlp", "tokens"]


def test_the_index_lists_every_version(server: ServerProcess) -> None:
    for ready in (False, True):
        index = call(
            server, "RepositoryIndex", pb.RepositoryIndexRequest(ready=ready), pb.RepositoryIndexResponse
        )
        assert [(m.name, m.version, m.state, m.reason) for m in index.models] == [
            (name, "1", "READY", "") for name in ("echo", "mixed", "mlp", "tokens")
        ]


@pytest.mark.parametrize("name", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
def test_a_model_that_is_not_here_has_no_description(server: ServerProcess, name: str) -> None:
    for asked in (pb.ModelRequest(name="nope"), pb.ModelRequest(name="echo", version="4")):
        with pytest.raises(grpc.RpcError) as refused:
            call(server, name, asked, pb.ModelMetadataResponse)
        assert refused.value.code() is NOT_FOUND


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_what_is_not_offered_says_why(server: ServerProcess, name: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        server.channel.unary_unary(SERVICE + name)(b"", timeout=20)
    assert refused.value.code() is UNIMPLEMENTED
    assert f"{name} is not offered: " in (refused.value.details() or "")
