"""TensorFlow Serving's calls: answers, TensorProto's rules, descriptions, and a message for everything refused.

tests/conformance asks the same server with the client people have.
"""

from collections.abc import Sequence
from typing import Any

import grpc
import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.wire import tensorflow_serving_pb2 as pb
from serve_grpc.errors import InvalidRequest
from serve_grpc.protocol.tensor_proto import KINDS, given, write
from serve_grpc.protocol.tensorflow_serving import NOT_OFFERED, SIGNATURE_DEF_MAP
from tests.server_process import ServerProcess

PREDICT = "/tensorflow.serving.PredictionService/Predict"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
E = np.array([[1, np.nan], [-0.0, np.inf]], np.float32)
H, KEEP = np.zeros((2, 3), jnp.bfloat16), np.array([True, False])
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
LIMIT = 4 * 2**20


def call(server: ServerProcess, path: str, request: Any, response: Any) -> Any:
    method = server.channel.unary_unary(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )
    return method(request, timeout=20)


def predict(server: ServerProcess, request: pb.PredictRequest) -> pb.PredictResponse:
    return call(server, PREDICT, request, pb.PredictResponse)


def tensor(dtype: pb.DataType | int, shape: Sequence[int], **values: Any) -> pb.Tensor:
    dims = [pb.TensorShape.Dim(size=size) for size in shape]
    return pb.Tensor(dtype=dtype, tensor_shape=pb.TensorShape(dim=dims), **values)  # type: ignore[arg-type]


def content(array: np.ndarray) -> pb.Tensor:
    return tensor(KINDS[array.dtype.name].type, array.shape, tensor_content=array.tobytes())


def asking(model: str, inputs: dict[str, pb.Tensor], outputs: Sequence[str] = (), **spec: Any) -> Any:
    return pb.PredictRequest(
        model_spec=pb.ModelSpec(name=model, **spec), inputs=inputs, output_filter=outputs
    )


def number(value: int) -> dict[str, Any]:
    spec = pb.ModelSpec()
    spec.version.value = value
    return {"version": spec.version}


def floats(*values: float) -> list[bytes]:
    return [np.array(values, np.float32).tobytes()]


def test_the_answer_has_the_values_where_clients_look_and_says_whose_it_is(server: ServerProcess) -> None:
    answer = predict(server, asking("echo", {"x": content(E)}))
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("echo", 1, "serving_default")
    assert answer.outputs.keys() == {"y"}
    assert b"".join(answer.outputs["y"].float_val) == E.tobytes()
    assert [dim.size for dim in answer.outputs["y"].tensor_shape.dim] == [2, 2]


@pytest.mark.parametrize(
    "spec", [{"signature_name": "serving_default"}, {"signature_name": "predict"}, number(1)]
)
def test_predict_is_the_default_signature(server: ServerProcess, spec: dict) -> None:
    assert (
        b"".join(predict(server, asking("echo", {"x": content(E)}, **spec)).outputs["y"].float_val)
        == E.tobytes()
    )


def test_only_the_outputs_asked_for_come(server: ServerProcess) -> None:
    inputs = {"h": content(H), "keep": content(KEEP)}
    assert predict(server, asking("mixed", inputs)).outputs.keys() == {"same", "kept"}
    answer = predict(server, asking("mixed", inputs, outputs=["kept"]))
    assert answer.outputs.keys() == {"kept"}
    assert list(answer.outputs["kept"].int_val) == [11, -11]


def test_halves_come_as_content(server: ServerProcess) -> None:
    h = np.array([[1.5, -0.0, np.nan]], jnp.bfloat16)
    inputs = {"h": content(h), "keep": content(KEEP[:1])}
    for outputs in (["same"], []):
        same = predict(server, asking("mixed", inputs, outputs=outputs)).outputs["same"]
        assert (same.dtype, same.tensor_content) == (pb.DT_BFLOAT16, h.tobytes())


def test_requests_that_differ_only_in_their_numbers_get_their_own_answers(server: ServerProcess) -> None:
    for at in range(6):
        x = np.full((2, 2), at, np.float32)
        for sent in (content(x), tensor(pb.DT_FLOAT, [2, 2], float_val=floats(*x.ravel()))):
            answer = predict(server, asking("echo", {"x": sent}))
            assert b"".join(answer.outputs["y"].float_val) == x.tobytes()


def test_the_last_value_fills_the_shape(server: ServerProcess) -> None:
    for sent, meant in (
        (floats(7), [7, 7, 7, 7]),
        (floats(1, 2), [1, 2, 2, 2]),
        (floats(1, 2, 3, 4), [1, 2, 3, 4]),
    ):
        answer = predict(server, asking("echo", {"x": tensor(pb.DT_FLOAT, [2, 2], float_val=sent)}))
        assert b"".join(answer.outputs["y"].float_val) == floats(*meant)[0]


@pytest.mark.parametrize("dtype", KINDS)
def test_values_of_each_dtype_are_read_as_they_are_written(dtype: str) -> None:
    bits = np.random.default_rng(3).integers(0, 256, 6 * np.dtype(dtype).itemsize, np.uint8)
    array = (bits % 2 if dtype == "bool" else bits).view(dtype).reshape(2, 3)
    message = pb.Tensor()
    write(message, dtype, array)
    back = given("x", pb.Tensor.FromString(message.SerializeToString()), LIMIT)
    assert (back.name, back.dtype, back.shape) == ("x", dtype, (2, 3))
    assert bytes(back.data) == array.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_read_from_their_bits(dtype: str) -> None:
    array = np.array([1.5, -0.0, np.inf], dtype)
    message = tensor(KINDS[dtype].type, [3], half_val=array.view(np.uint16).tolist())
    assert given("x", message, LIMIT).data == array.tobytes()
    with pytest.raises(InvalidRequest, match="65536 at element 1; needed: uint16"):
        given("x", tensor(KINDS[dtype].type, [2], half_val=[1, 65536]), LIMIT)


def test_values_of_halves_fill_the_shape_too() -> None:
    array = np.full(4, 1.5, np.float16)
    message = tensor(pb.DT_HALF, [4], half_val=array[:1].view(np.uint16).tolist())
    assert given("x", message, LIMIT).data == array.tobytes()


def of_unknown_rank() -> pb.Tensor:
    message = tensor(pb.DT_FLOAT, [], float_val=floats(1))
    message.tensor_shape.unknown_rank = True
    return message


# what is wrong: (request, status, what the message says)
REFUSED = {
    "model": (asking("nope", {"x": content(E)}), NOT_FOUND, ["'nope'", "echo, mixed"]),
    "no model": (pb.PredictRequest(), INVALID, ["model_spec has no name"]),
    "version": (asking("echo", {"x": content(E)}, **number(9)), NOT_FOUND, ["version 9"]),
    "version 0": (asking("echo", {"x": content(E)}, **number(0)), NOT_FOUND, ["version 0", "begin at 1"]),
    "label": (asking("echo", {"x": content(E)}, version_label="canary"), NOT_FOUND, ["label 'canary'"]),
    "signature": (
        asking("echo", {"x": content(E)}, signature_name="train"),
        NOT_FOUND,
        ["'train'", "predict"],
    ),
    "input name": (asking("echo", {"z": content(E)}), INVALID, ["input 'z'", "x (float32 [b, 2])"]),
    "no inputs": (asking("echo", {}), INVALID, ["'x'", "missing"]),
    "output name": (asking("echo", {"x": content(E)}, outputs=["z"]), INVALID, ["output 'z'"]),
    "strings": (
        asking("echo", {"x": tensor(pb.DT_STRING, [1], string_val=[b"text"])}),
        INVALID,
        ["'x'", "DT_STRING", "no strings"],
    ),
    "no dtype": (asking("echo", {"x": tensor(0, [2, 2])}), INVALID, ["'x'", "DT_INVALID", "DT_FLOAT"]),
    "a dtype of TensorFlow's alone": (
        asking("echo", {"x": tensor(11, [2, 2])}),
        INVALID,
        ["'x'", "DataType 11", "DT_FLOAT"],
    ),
    "another dtype": (
        asking("echo", {"x": content(E.astype(np.float64))}),
        INVALID,
        ["'x'", "'float64'", "needed: float32"],
    ),
    "unknown rank": (asking("echo", {"x": of_unknown_rank()}), INVALID, ["'x'", "unknown rank"]),
    "negative size": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [-2, 2], float_val=floats(1))}),
        INVALID,
        ["'x'", "[-2, 2]"],
    ),
    "two negative sizes": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [-2, -2], float_val=floats(1, 2, 3, 4))}),
        INVALID,
        ["'x'", "[-2, -2]"],
    ),
    "negative size of content": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [-2, 2], tensor_content=E.tobytes())}),
        INVALID,
        ["'x'", "batch of -2"],
    ),
    "too few bytes": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [2, 2], tensor_content=E.tobytes()[:-1])}),
        INVALID,
        ["'x'", "15 bytes", "16"],
    ),
    "too many values": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [2, 2], float_val=floats(*range(5)))}),
        INVALID,
        ["'x'", "5 values in float_val", "1 to 4"],
    ),
    "no values": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [2, 2])}),
        INVALID,
        ["'x'", "0 values in float_val", "came: none"],
    ),
    "values of another dtype": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [2, 2], int_val=[1, 2, 3, 4])}),
        INVALID,
        ["'x'", "0 values in float_val", "came: int_val"],
    ),
    "part of a value": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [2, 2], float_val=[b"12345"])}),
        INVALID,
        ["'x'", "1.25 values in float_val"],
    ),
    "int8 of 200": (
        asking("echo", {"x": tensor(pb.DT_INT8, [1, 2], int_val=[1, 200])}),
        INVALID,
        ["'x'", "200 at element 1", "int8", "-128 to 127"],
    ),
    "one value for a terabyte": (
        asking("echo", {"x": tensor(pb.DT_FLOAT, [2**40, 2], float_val=floats(1))}),
        INVALID,
        ["'x'", str(2**43), f"--max-message-bytes, which leaves {LIMIT}"],
    ),
    "bool of 2": (
        asking("mixed", {"h": content(H), "keep": tensor(pb.DT_BOOL, [2], bool_val=[b"\1\2"])}),
        INVALID,
        ["'keep'", "0 and 1"],
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_request_has_its_own_status_and_message(server: ServerProcess, what: str) -> None:
    request, code, says = REFUSED[what]
    with pytest.raises(grpc.RpcError) as refused:
        predict(server, request)
    details = refused.value.details() or ""
    assert refused.value.code() is code, details
    assert [part for part in says if part not in details] == [], details
    assert "\n" not in details


def test_a_truncated_message(server: ServerProcess) -> None:
    cut = asking("echo", {"x": content(E)}).SerializeToString()[:-3]
    with pytest.raises(grpc.RpcError) as refused:
        server.channel.unary_unary(PREDICT)(cut, timeout=20)
    assert refused.value.code() is INVALID
    assert f"{len(cut)} bytes that are no tensorflow.serving.PredictRequest" in (
        refused.value.details() or ""
    )


def test_the_metadata_is_the_signatures(server: ServerProcess) -> None:
    request = pb.GetModelMetadataRequest(
        model_spec=pb.ModelSpec(name="mixed"), metadata_field=["signature_def"]
    )
    answer = call(server, METADATA, request, pb.GetModelMetadataResponse)
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("mixed", 1)
    packed = answer.metadata["signature_def"]
    assert packed.type_url == SIGNATURE_DEF_MAP
    (name, described), *others = pb.SignatureDefMap.FromString(packed.value).signature_def.items()
    assert (name, described.method_name, others) == ("serving_default", "tensorflow/serving/predict", [])
    found = {
        key: (entry.dtype, [dim.size for dim in entry.tensor_shape.dim])
        for key, entry in (*described.inputs.items(), *described.outputs.items())
    }
    assert found == {
        "h": (pb.DT_BFLOAT16, [-1, 3]),
        "keep": (pb.DT_BOOL, [-1]),
        "same": (pb.DT_BFLOAT16, [-1, 3]),
        "kept": (pb.DT_INT32, [-1]),
    }


@pytest.mark.parametrize(
    ("model", "fields", "code", "said"),
    [
        ("nope", ["signature_def"], NOT_FOUND, "'nope'"),
        ("echo", ["signature_def", "assets"], INVALID, "'assets'"),
        ("echo", [], INVALID, "no metadata_field"),
        ("", ["signature_def"], INVALID, "model_spec has no name"),
    ],
)
def test_other_metadata_is_refused(
    server: ServerProcess, model: str, fields: list[str], code: grpc.StatusCode, said: str
) -> None:
    request = pb.GetModelMetadataRequest(model_spec=pb.ModelSpec(name=model), metadata_field=fields)
    with pytest.raises(grpc.RpcError, match=said) as refused:
        call(server, METADATA, request, pb.GetModelMetadataResponse)
    assert refused.value.code() is code


def test_the_status_is_that_of_every_version(server: ServerProcess) -> None:
    for spec in ({}, number(1)):
        request = pb.GetModelStatusRequest(model_spec=pb.ModelSpec(name="echo", **spec))
        (status,) = call(server, STATUS, request, pb.GetModelStatusResponse).model_version_status
        assert (status.version, status.state) == (1, pb.ModelVersionStatus.AVAILABLE)
        assert (status.status.error_code, status.status.error_message) == (0, "")
    for name, spec in (("nope", {}), ("echo", number(3))):
        with pytest.raises(grpc.RpcError) as refused:
            request = pb.GetModelStatusRequest(model_spec=pb.ModelSpec(name=name, **spec))
            call(server, STATUS, request, pb.GetModelStatusResponse)
        assert refused.value.code() is NOT_FOUND


@pytest.mark.parametrize("path", NOT_OFFERED)
def test_what_is_not_offered_says_why(server: ServerProcess, path: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        server.channel.unary_unary(path)(b"", timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert " is not offered: " in (refused.value.details() or "")
