"""tensorflow-serving-api's stubs with TensorFlow's own tensors against a running server, on each transport."""

import sys
from typing import Any

import numpy as np
import pytest

from tests.conformance.conftest import MODEL, TRANSPORTS, Tensor, ask

Inputs = dict[str, Tensor]

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="TensorFlow has no wheel for Python 3.14")


@pytest.fixture(scope="module")
def answers(addresses: list[str], inputs: Inputs) -> dict[str, Any]:
    return ask("tensorflow_client.py", addresses, inputs)


@pytest.fixture(params=TRANSPORTS)
def said(request: pytest.FixtureRequest, answers: dict[str, Any]) -> Any:
    return answers[request.param]


@pytest.mark.parametrize("how", ["all", "in_values", "by_label", "future"])
def test_predict_gives_every_dtype_bit_for_bit(said: Any, inputs: Inputs, how: str) -> None:
    assert said["predict"][how] == inputs


def test_the_answer_says_whose_it_is_and_has_what_was_asked_for(said: Any) -> None:
    assert said["predict"]["spec"] == [MODEL, 1, "serving_default"]
    assert said["predict"]["some"] == ["float32"]


def test_one_value_fills_a_tensor(said: Any) -> None:
    assert said["predict"]["filled"] == said["predict"]["one_row"]


def test_values_can_be_read_without_tensorflow(said: Any, inputs: Inputs) -> None:
    floats = np.frombuffer(bytes.fromhex(inputs["float32"][2]), np.float32)
    np.testing.assert_array_equal(np.array(said["predict"]["float_val"], np.float32), floats)
    integers = np.frombuffer(bytes.fromhex(inputs["int64"][2]), np.int64)
    assert said["predict"]["int64_val"] == integers.tolist()


def test_the_metadata_unpacks_as_tensorflows_own(said: Any, inputs: Inputs) -> None:
    assert said["metadata"] == {
        "serving_default": {
            "method": "tensorflow/serving/predict",
            **{name: [name, [None, 3]] for name in inputs},
            **{f"same_{name}": [name, [None, 3]] for name in inputs},
        }
    }


def test_the_status_is_available(said: Any) -> None:
    assert said["status"] == [[1, "AVAILABLE", 0]]


@pytest.mark.parametrize(
    ("what", "status", "says"),
    [
        ("model", "NOT_FOUND", "'nope'"),
        ("version", "NOT_FOUND", "version 9"),
        ("signature", "NOT_FOUND", "'train'"),
        ("missing", "INVALID_ARGUMENT", "input 'bool' is missing"),
        ("strings", "INVALID_ARGUMENT", "DT_STRING"),
        ("metadata", "INVALID_ARGUMENT", "signature_def"),
        ("status", "NOT_FOUND", "'nope'"),
        ("classify", "UNIMPLEMENTED", "tf.Example"),
        ("reload", "UNIMPLEMENTED", "models folder"),
    ],
)
def test_a_refusal_reaches_the_user_with_its_reason(said: Any, what: str, status: str, says: str) -> None:
    code, message = said["refused"][what]
    assert code == status
    assert says in message
