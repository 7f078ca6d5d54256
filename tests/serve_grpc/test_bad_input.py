"""The server's answer to every wrong request: its status, and a message that names what came and what is needed."""

import grpc
import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.wire import prediction_pb2 as pb
from tests.server_process import SERVICE, ServerProcess, predict_call, request, tensor

X = np.ones((2, 4), np.float32)
TOKENS = np.zeros((1, 8), np.int64)
H = np.zeros((2, 3), jnp.bfloat16)


def with_inputs(model: str, *tensors: pb.Tensor, **fields: object) -> pb.PredictRequest:
    return pb.PredictRequest(model=model, inputs=tensors, **fields)  # type: ignore[arg-type]


def one_value(value: int) -> np.ndarray:
    tokens = TOKENS.copy()
    tokens[0, 5] = value
    return tokens


NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

# what is wrong: (request, status, what the message says)
BAD = {
    "model": (request("nope", {"x": X}), NOT_FOUND, ["'nope'", "echo, mixed, mlp, tokens"]),
    "no model": (request("", {"x": X}), NOT_FOUND, ["''"]),
    "version": (request("mlp", {"x": X}, version=9), NOT_FOUND, ["version 9", "are: 1"]),
    "negative version": (request("mlp", {"x": X}, version=-1), NOT_FOUND, ["version -1"]),
    "signature": (request("mlp", {"x": X}, signature="train"), NOT_FOUND, ["'train'", "predict"]),
    "input name": (request("mlp", {"y": X}), INVALID, ["input 'y'", "x (float32 [b, 4])"]),
    "extra input": (request("mlp", {"x": X, "z": X}), INVALID, ["input 'z'", "x (float32 [b, 4])"]),
    "missing input": (request("mixed", {"h": H}), INVALID, ["input 'keep'", "missing", "keep (bool [b])"]),
    "no inputs": (with_inputs("mlp"), INVALID, ["input 'x'", "missing"]),
    "input twice": (with_inputs("mlp", tensor("x", X), tensor("x", X)), INVALID, ["'x'", "twice"]),
    "output name": (request("mlp", {"x": X}, outputs=["probs"]), INVALID, ["output 'probs'", "logits"]),
    "float64": (request("mlp", {"x": X.astype(np.float64)}), INVALID, ["'x'", "'float64'", "float32"]),
    "int32 for float32": (request("mlp", {"x": X.astype(np.int32)}), INVALID, ["'int32'", "float32"]),
    "uint8 for int32": (
        request("tokens", {"tokens": TOKENS.astype(np.uint8)}),
        INVALID,
        ["'uint8'", "int32"],
    ),
    "float32 for bfloat16": (
        request("mixed", {"h": H.astype(np.float32), "keep": np.ones(2, bool)}),
        INVALID,
        ["'h'", "'float32'", "bfloat16"],
    ),
    "no dtype": (with_inputs("mlp", tensor("x", X, dtype="")), INVALID, ["'x'", "''", "float32"]),
    "invented dtype": (with_inputs("mlp", tensor("x", X, dtype="quux")), INVALID, ["'quux'", "float32"]),
    "int64 too large": (
        request("tokens", {"tokens": one_value(2**40 + 7)}),
        INVALID,
        [str(2**40 + 7), "[0, 5]"],
    ),
    "int64 too small": (
        request("tokens", {"tokens": one_value(-(2**31) - 1)}),
        INVALID,
        ["-2147483649", "int32"],
    ),
    "rank low": (request("mlp", {"x": X[0]}), INVALID, ["[4]", "[b, 4]"]),
    "rank high": (request("mlp", {"x": X[None]}), INVALID, ["[1, 2, 4]", "[b, 4]"]),
    "scalar": (request("mlp", {"x": np.float32(1)}), INVALID, ["[]", "[b, 4]"]),
    "fixed dimension": (request("mlp", {"x": np.ones((2, 5), np.float32)}), INVALID, ["[2, 5]", "[b, 4]"]),
    "batch 0": (request("mlp", {"x": X[:0]}), INVALID, ["batch of 0", "at least 1"]),
    "negative batch": (with_inputs("mlp", tensor("x", X, shape=[-2, 4])), INVALID, ["batch of -2"]),
    "huge batch": (with_inputs("mlp", tensor("x", X, shape=[2**62, 4])), INVALID, ["32 bytes", str(2**66)]),
    "different batches": (
        request("mixed", {"h": H, "keep": np.ones(3, bool)}),
        INVALID,
        ["'keep' has 3 rows", "'h' has 2", "same batch"],
    ),
    "truncated bytes": (
        with_inputs("mlp", tensor("x", X, data=X.tobytes()[:-1])),
        INVALID,
        ["'x'", "31 bytes", "32"],
    ),
    "no bytes": (with_inputs("mlp", tensor("x", X, data=b"")), INVALID, ["0 bytes", "32"]),
    "too many bytes": (with_inputs("mlp", tensor("x", X, data=X.tobytes() * 2)), INVALID, ["64 bytes", "32"]),
    "bool of 2": (
        with_inputs("mixed", tensor("h", H), tensor("keep", np.ones(2, bool), data=b"\1\2")),
        INVALID,
        ["'keep'", "0 and 1"],
    ),
    "response over the limit": (
        # 128 KiB in, 8 MiB out
        request("tokens", {"tokens": np.zeros((16384, 8), np.int32)}),
        EXHAUSTED,
        ["logits", "--max-message-bytes", str(4 * 2**20)],
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_request_has_its_own_status_and_message(server: ServerProcess, what: str) -> None:
    message, code, says = BAD[what]
    with pytest.raises(grpc.RpcError) as refused:
        predict_call(server.channel)(message, timeout=20)
    assert refused.value.code() is code
    details = refused.value.details() or ""
    assert [part for part in says if part not in details] == [], details
    assert "\n" not in details
    still_right(server)


def test_a_message_of_100_mb_over_the_limit(server: ServerProcess) -> None:
    huge = request("mlp", {"x": np.zeros((100 * 10**6 // 16, 4), np.float32)})
    with pytest.raises(grpc.RpcError) as refused:
        predict_call(server.channel)(huge, timeout=30)
    assert refused.value.code() is EXHAUSTED
    assert str(4 * 2**20) in (refused.value.details() or "")
    still_right(server)


def test_bytes_that_are_no_message(server: ServerProcess) -> None:
    raw = server.channel.unary_unary(f"{SERVICE}Predict")
    with pytest.raises(grpc.RpcError) as refused:
        raw(b"\xff" * 40, timeout=20)
    assert refused.value.code() is INVALID
    assert "PredictRequest" in (refused.value.details() or "")
    still_right(server)


def test_a_method_that_does_not_exist(server: ServerProcess) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        server.channel.unary_unary(f"{SERVICE}Train")(b"", timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    still_right(server)


def test_a_model_that_is_not_here_has_no_description(server: ServerProcess) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        server.model("nope")
    assert refused.value.code() is NOT_FOUND
    with pytest.raises(grpc.RpcError) as refused:
        server.model("mlp", version=4)
    assert refused.value.code() is NOT_FOUND


def test_a_wrong_request_does_not_spoil_the_batch_it_came_with(server: ServerProcess) -> None:
    call = predict_call(server.channel)
    wrong = request("echo", {"x": np.ones((1, 3), np.float32)})
    pending = [
        call.future(wrong if i % 3 == 0 else request("echo", {"x": np.full((2, 2), i, np.float32)}))
        for i in range(60)
    ]
    for i, answer in enumerate(pending):
        if i % 3 == 0:
            assert answer.exception(timeout=20).code() is INVALID
        else:
            assert answer.result(timeout=20).outputs[0].data == np.full((2, 2), i, np.float32).tobytes()


def still_right(server: ServerProcess) -> None:
    x = np.array([[1, 2]], np.float32)
    assert server.predict("echo", {"x": x})["y"].tobytes() == x.tobytes()
