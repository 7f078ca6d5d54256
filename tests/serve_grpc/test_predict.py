"""What a client may count on when its request is right."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.serve_grpc.bundles import mlp, mlp_params
from tests.server_process import ServerProcess, predict_call, request


def wanted(x: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.asarray(mlp(mlp_params(seed), x)["logits"])


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 15, 16])
def test_every_batch_gets_the_source_functions_answer(server: ServerProcess, rows: int) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    np.testing.assert_allclose(server.predict("mlp", {"x": x})["logits"], wanted(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [17, 33, 250])
def test_more_rows_than_the_largest_bucket_are_split_and_joined_in_order(
    server: ServerProcess, rows: int
) -> None:
    assert max(server.model("mlp").signatures[0].buckets) <= 16
    x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    np.testing.assert_allclose(server.predict("mlp", {"x": x})["logits"], wanted(x), atol=1e-5, rtol=1e-5)


def test_requests_that_wait_together_get_their_own_rows(server: ServerProcess) -> None:
    rng = np.random.default_rng(5)
    inputs = [rng.normal(size=(int(rng.integers(1, 40)), 2)).astype(np.float32) for _ in range(120)]
    call = predict_call(server.channel)
    pending = [call.future(request("echo", {"x": x})) for x in inputs]
    for x, answer in zip(inputs, pending, strict=True):
        assert answer.result(timeout=20).outputs[0].data == x.tobytes()


def test_nan_passes_bit_for_bit(server: ServerProcess) -> None:
    bits = np.array([[0x7FC00001, 0xFFC12345], [0x7F800000, 0x80000000]], np.uint32)
    x = bits.view(np.float32)
    assert server.predict("echo", {"x": x})["y"].tobytes() == x.tobytes()


def test_bfloat16_bool_and_two_outputs(server: ServerProcess) -> None:
    h = np.array([[1.5, -2.25, np.nan]] * 3, jnp.bfloat16)
    got = server.predict("mixed", {"keep": np.array([True, False, True]), "h": h})
    assert list(got) == ["same", "kept"]
    assert got["same"].tobytes() == h.tobytes()
    assert got["kept"].tolist() == [11, -11, 11]
    assert got["kept"].dtype == np.int32


def test_only_the_outputs_asked_for_in_that_order(server: ServerProcess) -> None:
    inputs = {"h": np.zeros((1, 3), jnp.bfloat16), "keep": np.ones(1, bool)}
    assert list(server.predict("mixed", inputs, outputs=["kept"])) == ["kept"]
    assert list(server.predict("mixed", inputs, outputs=["kept", "same"])) == ["kept", "same"]


def test_int64_that_fits_is_taken_for_int32(server: ServerProcess) -> None:
    tokens = np.arange(8).reshape(1, 8)
    assert tokens.dtype == np.int64
    same = server.predict("tokens", {"tokens": tokens.astype(np.int32)})["logits"]
    assert server.predict("tokens", {"tokens": tokens})["logits"].tobytes() == same.tobytes()


def test_version_and_signature_may_be_named(server: ServerProcess) -> None:
    x = np.ones((1, 4), np.float32)
    named = server.predict("mlp", {"x": x}, version=1, signature="predict")["logits"]
    assert named.tobytes() == server.predict("mlp", {"x": x})["logits"].tobytes()


def test_a_model_says_how_to_call_it(server: ServerProcess) -> None:
    version = server.model("tokens")
    signature = version.signatures[0]
    assert (version.version, version.state) == (1, "SERVING")
    assert [(t.name, t.dtype, list(t.shape)) for t in signature.inputs] == [("tokens", "int32", ["b", "8"])]
    assert [(t.name, t.dtype, list(t.shape)) for t in signature.outputs] == [
        ("logits", "float32", ["b", "8", "16"])
    ]
    assert signature.buckets[0] == 1
    assert dict(version.usage) == {"task": "next_token"}
    assert version.window_ends
