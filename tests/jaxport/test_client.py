"""The Python client against a real server."""

import shutil

import grpc
import jax
import ml_dtypes
import numpy as np
import pytest

from converters import TensorSpec, export_bundle
from jaxport import Client, ServerError
from jaxport.errors import UsageError
from jaxport.tensors import TensorError, array_to_tensor, tensor_to_array
from jaxport.wire.prediction_pb2 import Tensor
from tests.converters.conftest import iris, iris_params, iris_rows
from tests.server_process import ServerProcess, eventually


@pytest.mark.parametrize("rows", [1, 3, 8, 21])
def test_predict_gives_what_the_function_gives(client: Client, rows: int) -> None:
    """21 rows are more than the largest bucket of this server, 8: they are split and joined again."""
    inputs = iris_rows(rows)
    want = jax.jit(iris)(iris_params(), **inputs)
    np.testing.assert_allclose(client.predict("iris", inputs)["logits"], want, rtol=1e-5, atol=1e-5)


def test_a_list_takes_the_dtype_that_the_model_declares(client: Client) -> None:
    row = [5.1, 3.5, 1.4, 0.2]
    want = client.predict("iris", {"x": np.array([row], np.float32)})["logits"]
    np.testing.assert_array_equal(client.predict("iris", {"x": [row]})["logits"], want)
    np.testing.assert_array_equal(
        client.predict("iris", {"x": [[5, 3, 1, 0]]})["logits"],
        client.predict("iris", {"x": np.array([[5, 3, 1, 0]], np.float32)})["logits"],
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([[2**40] * 16], "out of bounds for int32"),
        ([[0.5] * 16], "holds float64, int32 is needed"),
        ([["1"] * 16], "holds <U1, int32 is needed"),
        ([[True] * 16], "holds bool, int32 is needed"),
        ([[None] * 16], "holds object, int32 is needed"),
        ([[1, 2], [3]], "inhomogeneous shape"),
    ],
)
def test_a_list_that_does_not_fit_the_declared_dtype_is_refused(
    client: Client, value: list, said: str
) -> None:
    with pytest.raises(ServerError, match=said) as refusal:
        client.predict("letters", {"tokens": value})
    assert refusal.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert "'tokens'" in str(refusal.value)


@pytest.mark.parametrize("odd", [None, 4j, 1e39, "4.5", True])
def test_a_list_never_becomes_other_numbers_than_it_says(client: Client, odd: object) -> None:
    with pytest.raises(ServerError) as refusal:
        client.predict("iris", {"x": [[1.0, 2.0, 3.0, odd]]} if odd is not True else {"x": [[True] * 4]})
    assert refusal.value.code == grpc.StatusCode.INVALID_ARGUMENT


def test_a_client_that_is_there_for_long_follows_an_update_that_changes_what_a_model_takes(
    client: Client, server: ServerProcess
) -> None:
    def export(version: int, dtype: str) -> None:
        export_bundle(
            server.models / "changing" / str(version),
            lambda params, x: {"y": x * params["k"]},
            {"k": np.full(3, 2, dtype)},
            inputs={"x": TensorSpec(dtype, "b, 3")},
            outputs=("y",),
            example={"x": np.arange(9).reshape(3, 3).astype(dtype)},
        )

    def dtype_of(outputs: dict[str, np.ndarray]) -> str:
        return outputs["y"].dtype.name

    try:
        export(1, "int32")
        eventually(lambda: server.state("changing") == {1: "SERVING"}, "version 1 serves")
        others = [Client(server.grpc) for _ in range(2)]
        for each in (client, *others):
            assert dtype_of(each.predict("changing", {"x": [[1, 2, 3]]})) == "int32"
        export(2, "float32")
        eventually(lambda: server.state("changing") == {2: "SERVING"}, "version 2 serves")
        assert dtype_of(client.predict("changing", {"x": [[1, 2, 3]]})) == "float32", (
            "the server refuses int32"
        )
        assert dtype_of(others[0].predict("changing", {"x": [[0.5, 2, 3]]})) == "float32", "the client does"
        with pytest.raises(ServerError, match="shape"):
            others[1].predict("changing", {"x": [[1, 2]]})
        for each in others:
            each.close()
    finally:
        shutil.rmtree(server.models / "changing")
        eventually(lambda: server.state("changing") == {}, "as it was")


def test_no_signature_is_the_default_one(client: Client) -> None:
    assert client.predict("iris", {"x": [[5, 3, 1, 0]]}, signature="")["logits"].shape == (1, 3)


def test_the_look_up_is_within_the_timeout_of_the_call(client: Client) -> None:
    with pytest.raises(ServerError) as refusal:
        client.predict("iris", {"x": [[5, 3, 1, 0]]}, timeout=-1)
    assert refusal.value.code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_an_infinite_timeout_is_none_and_a_version_past_int64_and_a_closed_client_are_named(
    server: ServerProcess,
) -> None:
    with Client(server.grpc, timeout=float("inf")) as client:
        assert client.predict("iris", iris_rows(1))["logits"].shape == (1, 3)
        with pytest.raises(ServerError, match="INVALID_ARGUMENT"):
            client.predict("iris", iris_rows(1), version=2**63)
    with pytest.raises(UsageError, match="was closed"):
        client.predict("iris", iris_rows(1))


def test_nan_and_infinity_in_a_list_are_what_they_are(client: Client) -> None:
    assert np.isnan(client.predict("iris", {"x": [[1, 2, 3, float("nan")]]})["logits"]).all()


def test_a_label_names_a_version_and_a_request_may_go_first_and_wait_no_longer_than(client: Client) -> None:
    want = client.predict("iris", iris_rows(3))["logits"]
    got = client.predict("iris", iris_rows(3), label="stable", priority=1, queue_timeout=10.0)["logits"]
    np.testing.assert_array_equal(got, want)
    row = [[5.1, 3.5, 1.4, 0.2]]
    assert client.predict("iris", {"x": row}, label="stable")["logits"].shape == (1, 3)
    assert list(client.model("iris", label="stable").labels) == ["stable"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ({"label": "canary"}, grpc.StatusCode.NOT_FOUND, "no label 'canary'"),
        ({"label": "stable", "version": 1}, grpc.StatusCode.INVALID_ARGUMENT, "one of them, or none"),
        ({"priority": 2}, grpc.StatusCode.INVALID_ARGUMENT, "priority is 2"),
        ({"priority": -1}, grpc.StatusCode.INVALID_ARGUMENT, "priority is -1"),
        ({"queue_timeout": -1.0}, grpc.StatusCode.INVALID_ARGUMENT, "queue_timeout_ms is -1000"),
        ({"queue_timeout": float("nan")}, grpc.StatusCode.INVALID_ARGUMENT, "queue_timeout_ms is nan"),
    ],
)
def test_what_a_request_cannot_ask_for(
    client: Client, arguments: dict, code: grpc.StatusCode, said: str
) -> None:
    with pytest.raises(ServerError, match=said) as refusal:
        client.predict("iris", iris_rows(1), **arguments)
    assert refusal.value.code == code


def test_an_array_is_sent_as_it_is_and_the_server_says_what_it_needs(client: Client) -> None:
    with pytest.raises(ServerError, match=r"float64.*float32") as refusal:
        client.predict("iris", {"x": np.zeros((1, 4), np.float64)})
    assert refusal.value.code == grpc.StatusCode.INVALID_ARGUMENT


def test_jax_arrays_are_taken_too(client: Client) -> None:
    assert client.predict("iris", {"x": jax.numpy.ones((2, 4))})["logits"].shape == (2, 3)


def test_what_a_server_has_can_be_asked(client: Client) -> None:
    assert set(client.models()) == {"iris", "letters", "phrases"}
    found = client.model("letters")
    assert (found.version, found.state, found.usage["task"]) == (1, "SERVING", "next_token")
    assert list(found.signatures[0].inputs[0].shape) == ["b", "16"]
    assert list(found.signatures[0].buckets) == sorted(found.signatures[0].buckets)
    assert list(found.signatures[0].lengths) == []
    (free,) = client.model("phrases").signatures
    assert list(free.inputs[0].shape) == ["b", "t"] and list(free.outputs[0].shape) == ["b", "t", "256"]
    assert set(free.lengths) <= {8, 16} and free.lengths[-1] == 16


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"model": "none"}, grpc.StatusCode.NOT_FOUND),
        ({"version": 7}, grpc.StatusCode.NOT_FOUND),
        ({"signature": "embed"}, grpc.StatusCode.NOT_FOUND),
        ({"outputs": ["probabilities"]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"inputs": {"y": np.zeros((1, 4), np.float32)}}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_refusal_carries_the_servers_status(client: Client, arguments: dict, code: grpc.StatusCode) -> None:
    call = {"model": "iris", "inputs": iris_rows(1)} | arguments
    with pytest.raises(ServerError) as refusal:
        client.predict(call.pop("model"), call.pop("inputs"), **call)
    assert refusal.value.code == code
    assert refusal.value.exit_code == 2


def test_no_server_is_said_with_what_to_do() -> None:
    with (
        Client("127.0.0.1:1", timeout=5) as client,
        pytest.raises(ServerError, match="jaxport serve") as refusal,
    ):
        client.models()
    assert refusal.value.exit_code == 4


def test_one_limit_holds_for_the_client_too(client: Client, server) -> None:
    with (
        Client(server.grpc, max_message_bytes=1 << 10) as small,
        pytest.raises(
            ServerError, match="raise max_message_bytes here and --max-message-bytes at the server"
        ) as refusal,
    ):
        small.predict("iris", iris_rows(1000))
    assert refusal.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.predict("iris", iris_rows(1000))["logits"].shape == (1000, 3)


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, np.nan], [np.inf, -0.0]], np.float32),
        np.array([1, 2, 3], ml_dtypes.bfloat16),
        np.array([True, False]),
        np.array(7, np.int8),
        np.zeros((0, 3), np.uint16),
        np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2],
        np.arange(3, dtype=">i4"),
        np.array([1 + 2j], np.complex64),
    ],
)
def test_arrays_travel_bit_for_bit(array: np.ndarray) -> None:
    back = tensor_to_array(array_to_tensor("x", array))
    assert back.dtype.name == array.dtype.name and back.shape == array.shape
    assert back.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (Tensor(name="x", dtype="float32", shape=[2], data=b"123"), "3 bytes came, float32.2. needs 8"),
        (Tensor(name="x", dtype="object", shape=[1], data=b"12345678"), "dtype is object"),
        (Tensor(name="x", shape=[1], data=b"1"), "dtype is not given"),
        (Tensor(name="x", dtype="int8", shape=[-1], data=b"1"), "sizes may not be negative"),
        (Tensor(name="x", dtype="bool", shape=[1], data=b"\2"), "0 or 1; 2 came"),
        (Tensor(name="x", dtype="int8", shape=[2**62, 4], data=b""), "needs 18446744073709551616"),
    ],
)
def test_a_message_whose_parts_disagree_is_refused(tensor: Tensor, said: str) -> None:
    with pytest.raises(TensorError, match=said):
        tensor_to_array(tensor)


def test_strings_and_objects_never_travel() -> None:
    with pytest.raises(TensorError, match="cannot be sent"):
        array_to_tensor("x", np.array(["text"]))
