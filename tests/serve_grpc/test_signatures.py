"""One server, and bundles that are more than one program for any batch: several signatures over the same weights."""

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from jaxport import Client
from jaxport.cli import main
from jaxport.errors import ServerError
from tests.once import OncePerRun
from tests.serve_grpc import bundles
from tests.server_process import ServerProcess

PARAMS = bundles.mlp_params()
X = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)
EMBEDDING = X @ PARAMS["w0"] + PARAMS["b0"]


@pytest.fixture(scope="module")
def server(once: OncePerRun, cache: Path) -> Iterator[ServerProcess]:
    models = once.folder("signatures", bundles.export_two)
    with ServerProcess(models, "--max-batch", "4", "--cache-dir", str(cache)) as process:
        yield process.ready()
        assert process.metric("jaxport_compiles_after_ready_total") == 0


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc) as client:
        yield client


def test_a_client_picks_the_program_by_its_signature(client: Client) -> None:
    got = client.predict("two", {"x": X}, signature="embed")
    np.testing.assert_allclose(got["embedding"], EMBEDDING, rtol=1e-5, atol=1e-5)
    want = np.asarray(bundles.mlp(PARAMS, X)["logits"])
    for named in ({}, {"signature": "predict"}):
        np.testing.assert_allclose(
            client.predict("two", {"x": X}, **named)["logits"], want, rtol=1e-5, atol=1e-5
        )
    assert [s.name for s in client.model("two").signatures] == ["predict", "embed"]
    with pytest.raises(
        ServerError, match="has no signature 'other'; its signatures are: predict, embed"
    ) as no:
        client.predict("two", {"x": X}, signature="other")
    assert no.value.code == grpc.StatusCode.NOT_FOUND


def test_the_command_picks_it_too(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "two", "--address", server.grpc, "--json", "--input", f"x={X[:1].tolist()}"]
    assert main([*asked, "--signature", "embed"]) == 0
    np.testing.assert_allclose(
        json.loads(capsys.readouterr().out)["embedding"], EMBEDDING[:1], rtol=1e-4, atol=1e-4
    )
