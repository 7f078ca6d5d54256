"""tritonclient's calls against a running server, on each transport."""

from typing import Any

import pytest

from serve_grpc.protocol.open_inference_types import DATATYPES
from tests.conformance.conftest import MODEL, ROWS, TRANSPORTS, Tensor, ask

CALLS = 24
Inputs = dict[str, Tensor]


@pytest.fixture(scope="module")
def answers(addresses: list[str], inputs: Inputs) -> dict[str, Any]:
    return ask("triton_client.py", addresses, inputs)


@pytest.fixture(params=TRANSPORTS)
def said(request: pytest.FixtureRequest, answers: dict[str, Any]) -> Any:
    return answers[request.param]


@pytest.mark.parametrize("how", ["all", "with_options", "by_label", "gzip"])
def test_infer_gives_every_dtype_bit_for_bit(said: Any, inputs: Inputs, how: str) -> None:
    assert said["infer"][how] == inputs


def test_infer_gives_the_outputs_asked_for_and_the_id(said: Any) -> None:
    assert said["infer"]["some"] == [["same_bool"], "r1"]


def test_async_infer_answers_every_call(said: Any, inputs: Inputs) -> None:
    assert said["async"] == {"errors": [], "ids": list(range(CALLS)), "distinct": [inputs]}


def test_a_stream_answers_in_order_and_goes_on_after_a_refusal(said: Any, inputs: Inputs) -> None:
    stream = said["stream"]
    refused = [at for at in range(CALLS) if at % 3 == 1]
    assert stream["ids"] == [at for at in range(CALLS) if at % 3 != 1]
    assert [at for at, _ in stream["errors"]] == refused
    assert all("'nope'" in message for _, message in stream["errors"])
    assert (stream["first"], stream["wrong"], set(stream["finals"])) == (inputs, 0, {True})


def test_the_asyncio_client_gets_the_same(said: Any, inputs: Inputs) -> None:
    assert said["aio"] == [inputs] * 4


def test_the_server_and_its_models_are_described(said: Any) -> None:
    described = said["described"]
    assert (described["live"], described["ready"]) == (True, True)
    assert (described["model_ready"], described["absent_ready"]) == ([True, True], False)
    assert described["server"]["name"] == "jaxport"
    assert described["index"]["models"] == [{"name": MODEL, "version": "1", "state": "READY"}]


def test_metadata_and_config_agree(said: Any, inputs: Inputs) -> None:
    metadata, config = said["described"]["metadata"], said["described"]["config"]
    # as_json writes an int64 as text
    assert metadata["inputs"] == [
        {"name": name, "datatype": DATATYPES[name], "shape": ["-1", "3"]} for name in inputs
    ]
    assert [(t["name"], t["data_type"], t["dims"]) for t in config["input"]] == [
        (name, f"TYPE_{DATATYPES[name]}", ["3"]) for name in inputs
    ]
    assert [t["name"] for t in metadata["outputs"]] == [t["name"] for t in config["output"]]
    assert (metadata["versions"], config["max_batch_size"] in (1, 2, 4)) == (["1"], True)
    assert config["dynamic_batching"]["priority_levels"] == "2"


def test_statistics_count_what_was_asked(said: Any) -> None:
    def since(*path: str) -> int:
        before, after = said["before"], said["after"]
        for key in path:
            before, after = before.get(key, {}), after[key]
        return int(after) - int(before or 0)

    asked = 5 + CALLS + CALLS * 2 // 3 + 4  # infer, async_infer, what a stream was not refused, asyncio
    assert since("inference_stats", "success", "count") == asked
    assert (
        since("inference_stats", "fail", "count") == 3
    )  # a version, an input and a shape that are not there
    assert since("inference_count") == asked * ROWS
    assert since("execution_count") >= asked * ROWS / 4
    batches = said["after"]["batch_stats"]
    assert int(said["after"]["execution_count"]) == sum(int(b["compute_infer"]["count"]) for b in batches)
    for stage in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
        assert since("inference_stats", stage, "ns") > 0


@pytest.mark.parametrize(
    ("what", "status", "says"),
    [
        ("model", "NOT_FOUND", "'nope'"),
        ("version", "NOT_FOUND", "version 9"),
        ("missing", "INVALID_ARGUMENT", "input 'bool' is missing"),
        ("shape", "INVALID_ARGUMENT", "[5, 6]"),
        ("strings", "INVALID_ARGUMENT", "BYTES"),
        ("metadata", "NOT_FOUND", "'nope'"),
        ("load", "UNIMPLEMENTED", "models folder"),
        ("shared_memory", "UNIMPLEMENTED", "shared memory"),
        ("trace", "UNIMPLEMENTED", "flags"),
    ],
)
def test_a_refusal_reaches_the_user_with_its_reason(said: Any, what: str, status: str, says: str) -> None:
    code, message = said["refused"][what]
    assert code == f"StatusCode.{status}"
    assert says in message
