"""One server, and bundles that are more than one program for any batch: several signatures, sizes of further symbols."""

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from converters import export_bundle
from jaxport import Client
from jaxport.cli import main
from jaxport.errors import ServerError
from serve_grpc.device import open_device
from serve_grpc.errors import LoadRefused
from serve_grpc.loader import Loader
from serve_grpc.metrics import Metrics
from serve_grpc.settings import BatchSettings
from tests.once import OncePerRun
from tests.serve_grpc import bundles
from tests.server_process import ServerProcess

PARAMS = bundles.mlp_params()
X = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)
EMBEDDING = X @ PARAMS["w0"] + PARAMS["b0"]


@pytest.fixture(scope="module")
def server(once: OncePerRun, cache: Path) -> Iterator[ServerProcess]:
    def export(folder: Path) -> None:
        bundles.export_two(folder)
        bundles.export_pairs(folder)

    models = once.folder("signatures", export)
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


def test_a_loss_is_refused_by_its_name_and_the_others_are_served(client: Client) -> None:
    with pytest.raises(ServerError, match="does not serve signature 'loss': it is a loss, one number") as no:
        client.predict("two", {"x": X}, signature="loss")
    assert no.value.code == grpc.StatusCode.NOT_FOUND
    assert [s.name for s in client.model("two").signatures] == ["predict", "embed"]


def test_the_command_picks_it_too(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "two", "--address", server.grpc, "--json", "--input", f"x={X[:1].tolist()}"]
    assert main([*asked, "--signature", "embed"]) == 0
    np.testing.assert_allclose(
        json.loads(capsys.readouterr().out)["embedding"], EMBEDDING[:1], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("k", [2, 5])
def test_every_declared_size_is_compiled_and_answered(server: ServerProcess, k: int) -> None:
    for rows in (1, 3, 9):  # 9: more than any bucket
        given = bundles.pairs_inputs(rows, k)
        got, want = server.predict("pairs", given), bundles.pairs({"w": np.float32(3)}, **given)
        assert {name: value.shape for name, value in got.items()} == {"sum": (rows, k), "both": (rows, 2 * k)}
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (bundles.pairs_inputs(1, 4), "'x' has shape [1, 4], 'y' has shape [1, 8]; needed: x [b, k], y [b, 2*k] with k of 2, 5"),
        (bundles.pairs_inputs(1, 2) | {"y": np.zeros((1, 5), np.float32)}, "needed: x [b, k], y [b, 2*k] with k of 2, 5"),
        ({"x": np.zeros(2, np.float32)}, "input 'x' has shape [2]; needed: [b, 2]"),
        ({"x": np.zeros((1, 5), np.float32)}, "input 'y' is missing from signature 'predict', which takes: x (float32 [b, k]), y (float32 [b, 2*k])"),
    ],
)  # fmt: skip
def test_another_size_is_refused_and_the_sizes_are_named(client: Client, given: dict, said: str) -> None:
    with pytest.raises(ServerError) as refused:
        client.predict("pairs", given)
    assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT and said in refused.value.message


def test_the_sizes_are_told(server: ServerProcess, client: Client) -> None:
    predict, one = client.model("pairs").signatures
    assert [dict(each.by_symbol) for each in predict.sizes] == [{"k": 2}, {"k": 5}]
    assert not one.sizes and not predict.lengths
    overview = json.loads(server.get("/status.json")[1])
    (version,) = next(m for m in overview["models"] if m["name"] == "pairs")["versions"]
    lanes = {tuple(lane["sizes"].items()): lane for lane in version["signatures"][0]["lanes"]}
    assert lanes.keys() == {(("k", 5),), (("k", 2),)}
    assert all(bucket["golden_error"] <= 1 for lane in lanes.values() for bucket in lane["buckets"])
    page = server.get("/")[1]
    assert ">sizes</th>" in page and "k=5" in page and "length up to" not in page


def test_bench_asks_for_sizes_that_there_are(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--address", server.grpc, "--seconds", "0.2", "--concurrency", "1", "--processes", "1", "--json"]
    assert main(["bench", "pairs", *flags]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["requests"] > 0 and result["errors"] == 0


def test_sizes_that_nothing_names_are_not_served_and_the_others_are(client: Client) -> None:
    with pytest.raises(
        ServerError, match=r"does not serve signature 'any': .* export with sizes="
    ) as refused:
        client.predict("pairs", bundles.pairs_inputs(1, 2), signature="any")
    assert refused.value.code == grpc.StatusCode.NOT_FOUND
    assert client.predict("pairs", {"x": np.ones((1, 2), np.float32)}, signature="one")["y"].tolist() == [
        [3, 3]
    ]
    assert [s.name for s in client.model("pairs").signatures] == ["predict", "one"]


def test_a_version_of_nothing_else_fails_and_says_why(tmp_path: Path) -> None:
    device, metrics = open_device(), Metrics()
    path = export_bundle(
        tmp_path / "m" / "1", params={"w": np.float32(3)}, signatures={"predict": bundles.pairs_spec()}
    )
    with pytest.raises(LoadRefused, match=r"signature 'predict': its inputs have sizes 'k' .* sizes=\{...\}"):
        Loader(device, BatchSettings(), metrics).load("m", path, None)
