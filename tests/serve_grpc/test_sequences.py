"""Requests of any length in one server: the shortest program that holds them, padded there, cut on the way out."""

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from jaxport.wire import open_inference_pb2 as oip
from jaxport.wire import tensorflow_serving_pb2 as tfs
from tests.serve_grpc import bundles
from tests.serve_grpc.bundles import LONGEST
from tests.serve_grpc.test_http_predict import ask, post
from tests.serve_grpc.test_open_inference import call, infer, raw
from tests.serve_grpc.test_tensorflow_serving import METADATA, asking, content, predict
from tests.serve_grpc.test_tensorflow_serving import call as tfs_call
from tests.server_process import ServerProcess

PARAMS = bundles.sequence_params()


@pytest.fixture(scope="module")
def server(sequences: Path, cache: Path) -> Iterator[ServerProcess]:
    with ServerProcess(sequences, "--max-batch", "4", "--cache-dir", str(cache)) as process:
        yield process.ready()
        assert process.metric("jaxport_compiles_after_ready_total") == 0
        process.signal()
        assert process.wait() == 0


def inputs(rows: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, rows, length])
    return {
        "tokens": rng.integers(0, 16, (rows, length)).astype(np.int32),
        "keep": rng.random((rows, length)) < 0.7,
    }


def check(got: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> None:
    want = bundles.sequence(PARAMS, **given, xp=np)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].shape == value.shape, "as long as the request"
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4)


def test_every_length_is_answered_as_the_function_does(server: ServerProcess) -> None:
    for length in range(1, LONGEST + 1):
        for rows in (1, 3, 9):  # 9: more than any bucket
            given = inputs(rows, length)
            check(server.predict("sequence", given), given)


def test_lengths_that_come_together_do_not_touch_each_other(server: ServerProcess) -> None:
    wrong: list[BaseException] = []

    def caller(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(12):
                given = inputs(int(rng.integers(1, 4)), int(rng.integers(1, LONGEST + 1)), seed)
                check(server.predict("sequence", given), given)
        except BaseException as error:
            wrong.append(error)

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(6)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert not wrong, wrong[0]


def test_every_protocol_has_lengths(server: ServerProcess) -> None:
    given = inputs(2, 5)
    answer = infer(server, raw("sequence", given))
    assert [list(output.shape) for output in answer.outputs] == [[2, 5, 3], [2, 256]]
    found = [np.frombuffer(data, np.float32) for data in answer.raw_output_contents]
    check({"running": found[0].reshape(2, 5, 3), "mean": found[1].reshape(2, 256)}, given)

    outputs = predict(server, asking("sequence", {n: content(a) for n, a in given.items()})).outputs
    assert [dim.size for dim in outputs["running"].tensor_shape.dim] == [2, 5, 3]
    shapes = {"running": (2, 5, 3), "mean": (2, 256)}
    read = {name: b"".join(outputs[name].float_val) for name in shapes}
    check(
        {name: np.frombuffer(read[name], np.float32).reshape(shape) for name, shape in shapes.items()}, given
    )

    body = {"inputs": {name: array.tolist() for name, array in given.items()}}
    status, said = post(server, "sequence:predict", body)
    assert status == 200
    check({name: np.array(value, np.float32) for name, value in said["outputs"].items()}, given)


def test_a_length_is_described_as_free(server: ServerProcess) -> None:
    asked = oip.ModelRequest(name="sequence")
    metadata = call(server, "ModelMetadata", asked, oip.ModelMetadataResponse)
    assert [list(t.shape) for t in (*metadata.inputs, *metadata.outputs)] == [
        [-1, -1], [-1, -1], [-1, -1, 3], [-1, 256]
    ]  # fmt: skip
    config = call(server, "ModelConfig", asked, oip.ModelConfigResponse).config
    assert [list(t.dims) for t in (*config.input, *config.output)] == [[-1], [-1], [-1, 3], [256]]
    request = tfs.GetModelMetadataRequest(
        model_spec=tfs.ModelSpec(name="sequence"), metadata_field=["signature_def"]
    )
    assert tfs_call(server, METADATA, request, tfs.GetModelMetadataResponse).metadata
    said = ask(server, "GET", "/v1/models/sequence/metadata")[1]["metadata"]["signature_def"]["signature_def"]
    dims = said["predict"]["inputs"]["tokens"]["tensor_shape"]["dim"]
    assert [dim["size"] for dim in dims] == ["-1", "-1"]
    (signature,) = server.model("sequence").signatures
    assert [list(t.shape) for t in signature.inputs] == [["b", "t"], ["b", "t"]]


def test_the_status_page_has_the_lanes(server: ServerProcess) -> None:
    (signature,) = ask(server, "GET", "/status.json")[1]["models"][0]["versions"][0]["signatures"]
    lengths = [lane["length"] for lane in signature["lanes"]]
    assert lengths == sorted(lengths) and lengths[-1] == LONGEST and set(lengths) <= {8, 16, 24}
    before = server.metric("jaxport_padding_positions_total")
    assert server.predict("sequence", inputs(3, 1))
    shortest = lengths[0]
    assert server.metric("jaxport_padding_positions_total") == before + 3 * (shortest - 1)
    assert all(bucket["golden_error"] <= 1 for lane in signature["lanes"] for bucket in lane["buckets"])
    page = server.get("/")[1]
    assert "positions behind the ends of rows" in page
    assert "length up to" in page and f">{LONGEST}<" in page


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 0), (1, 0)), "input 'tokens' has shape [1, 0], a length of 0; needed: 1 to 24"),
        (((1, 25), (1, 25)), "input 'tokens' has shape [1, 25], a length of 25; needed: 1 to 24"),
        (((1, 4), (1, 5)), "input 'keep' has a length of 5 and input 'tokens' has 4; needed: the same"),
        (((4,), (1, 4)), "input 'tokens' has shape [4]; needed: [b, t]"),
        (((1, 4), (2, 4)), "input 'keep' has 2 rows and input 'tokens' has 1"),
        (((0, 4), (0, 4)), "a batch of 0; needed: at least 1"),
        (((1, 4),), "input 'keep' is missing from signature 'predict', which takes: tokens (int32 [b, t]), keep"),
    ],
)  # fmt: skip
def test_a_wrong_length_is_refused_in_one_line(server: ServerProcess, shapes: tuple, message: str) -> None:
    kinds = {"tokens": np.int32, "keep": np.bool_}
    given = {
        name: np.zeros(shape, dtype) for (name, dtype), shape in zip(kinds.items(), shapes, strict=False)
    }
    with pytest.raises(grpc.RpcError) as refused:
        server.predict("sequence", given)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # pyright: ignore[reportAttributeAccessIssue]
    assert message in refused.value.details()  # pyright: ignore[reportAttributeAccessIssue]
