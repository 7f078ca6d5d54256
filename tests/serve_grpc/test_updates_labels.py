"""Policies and labels under a running server: who answers whom, and what damaged files do (nothing)."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from converters.promote import promote, rollback, set_policy
from tests.serve_grpc import bundles
from tests.server_process import ServerProcess, eventually, predict_call, publish, request

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def server(versions: Path, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[ServerProcess]:
    """Shared by the tests below; each starts with versions 1 to 3, policy `latest 1` and no labels."""
    folder = tmp_path_factory.mktemp("models")
    for version in (1, 2, 3):
        publish(versions / str(version), folder / "mlp" / str(version))
    with ServerProcess(folder, "--max-batch", "2", "--cache-dir", str(cache)) as process:
        yield process.ready()
        assert process.alive
        assert process.metric("jaxport_compiles_after_ready_total") == 0


@pytest.fixture
def model(server: ServerProcess, versions: Path) -> Iterator[Path]:
    """The folder of the model as every test finds it."""
    folder = server.models / "mlp"
    yield folder
    shutil.rmtree(folder / "labels", ignore_errors=True)
    (folder / "policy").unlink(missing_ok=True)
    for version in (1, 2, 3):
        if not (folder / str(version)).is_dir():
            publish(versions / str(version), folder / str(version))
    shutil.rmtree(folder / "4", ignore_errors=True)
    eventually(lambda: server.state("mlp") == {3: "SERVING"}, "version 3 serves alone")


def asked(server: ServerProcess, **fields: object) -> int:
    """The version that answers; its answer is that version's."""
    response = predict_call(server.channel)(request("mlp", {"x": X}, **fields), timeout=20)
    got = np.frombuffer(response.outputs[0].data, np.float32).reshape(3, 3)
    wanted = np.asarray(bundles.mlp(bundles.mlp_params(response.version), X)["logits"])
    np.testing.assert_allclose(got, wanted, atol=1e-5, rtol=1e-5)
    return response.version


def refused(server: ServerProcess, **fields: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        asked(server, **fields)
    return error.value.code(), error.value.details()


def loads(server: ServerProcess) -> int:
    return sum("serving model=mlp" in line for line in server.lines)


def test_several_versions_answer_at_once_and_the_highest_by_default(
    server: ServerProcess, model: Path
) -> None:
    set_policy(model, "latest 2")
    eventually(lambda: server.state("mlp") == {2: "SERVING", 3: "SERVING"}, "two serve")
    assert [asked(server), asked(server, version=2), asked(server, version=3)] == [3, 2, 3]
    code, words = refused(server, version=1)
    assert code is grpc.StatusCode.NOT_FOUND and "the versions are: 2, 3" in words
    set_policy(model, "pinned 1,2")
    eventually(lambda: server.state("mlp") == {1: "SERVING", 2: "SERVING"}, "the pinned ones serve")
    assert [asked(server), asked(server, version=1)] == [2, 1]
    assert not [
        line for line in server.lines if " loaded model=mlp version=1" in line and "compiled=True" in line
    ]


def test_a_canary_is_asked_by_its_label_and_promoted_by_moving_another(
    server: ServerProcess, model: Path
) -> None:
    promote(model, 2, "stable")
    promote(model, 1, "canary")
    set_policy(model, "label stable")
    eventually(lambda: server.state("mlp") == {1: "SERVING", 2: "SERVING"}, "the labelled ones serve")
    assert (asked(server), asked(server, label="stable"), asked(server, label="canary")) == (2, 2, 1)
    code, words = refused(server, label="beta")
    assert code is grpc.StatusCode.NOT_FOUND and "the labels are: canary, stable" in words
    before = loads(server)
    promote(model, 1, "stable")
    eventually(lambda: asked(server) == 1 and server.state("mlp") == {1: "SERVING"}, "the canary is stable")
    assert loads(server) == before, "a version that is loaded is only pointed to"
    rollback(model, "stable")
    eventually(lambda: asked(server) == 2, "stable is rolled back")
    assert server.line(r"loaded model=mlp version=2 .*compiled=False")
    assert asked(server, label="canary") == 1


def test_a_label_to_a_version_that_does_not_load_stays_where_it_was(
    server: ServerProcess, model: Path, versions: Path
) -> None:
    promote(model, 2, "stable")
    eventually(lambda: server.state("mlp") == {2: "SERVING", 3: "SERVING"}, "stable serves")
    (model / "labels" / "stable").write_text("9\n")
    server.line("label 'stable' points to version 9, which is not in the folder")
    assert asked(server, label="stable") == 2
    (model / "labels" / "new").write_text("9\n")
    server.line("label 'new' points to version 9")
    code, words = refused(server, label="new")
    assert (
        code is grpc.StatusCode.UNAVAILABLE and "label 'new': version 9 is not in the models folder" in words
    )
    shutil.copytree(versions / "4", model / ".4")
    golden = model / ".4" / "golden/predict.npz"
    golden.write_bytes(golden.read_bytes()[:-1])
    (model / ".4").rename(model / "4")
    (model / "labels" / "new").write_text("4\n")
    server.line("label 'new' points to version 4, which failed to load")
    code, words = refused(server, label="new")
    assert code is grpc.StatusCode.UNAVAILABLE and "version 4 is FAILED: " in words
    assert (asked(server), asked(server, label="stable")) == (3, 2)
    shutil.rmtree(model / "2")
    server.line("label 'stable' points to version 9")
    assert asked(server, label="stable") == 2, "what a label stands for serves on"


@pytest.mark.parametrize("how", ["garbage", "huge", "pipe", "folder", "empty"])
def test_a_damaged_file_is_named_once_and_changes_nothing(
    server: ServerProcess, model: Path, tmp_path: Path, how: str
) -> None:
    promote(model, 2, "stable")
    set_policy(model, "label stable")
    eventually(lambda: server.state("mlp") == {2: "SERVING"}, "stable alone serves")
    problems = server.metric("jaxport_policy_problems_total", model="mlp")
    start = len(server.lines)
    damaged = tmp_path / "damaged"
    match how:
        case "garbage":
            damaged.write_bytes(os.urandom(200))
        case "huge":
            damaged.write_bytes(b"3" * 5_000_000)
        case "pipe":
            os.mkfifo(damaged)
        case "folder":
            damaged.mkdir()
        case "empty":
            damaged.touch()
    for path in (model / "labels" / "stable", model / "policy"):
        link = path.with_name(".link")
        link.symlink_to(damaged)
        link.rename(path)  # never absent: that would be another thing
    eventually(lambda: sum("needed: " in line for line in server.lines[start:]) >= 2, "both files are named")
    assert asked(server) == asked(server, label="stable") == 2
    assert server.health("mlp") == "SERVING"
    assert server.metric("jaxport_policy_problems_total", model="mlp") == problems + 2
    named = [line.partition(" ERROR ")[2] for line in server.lines[start:] if "needed: " in line]
    eventually(lambda: asked(server) == 2, "it goes on")
    assert len(named) == len(set(named)) == 2, "each is named once, not at every poll"


def test_a_policy_that_nothing_answers_leaves_what_serves(server: ServerProcess, model: Path) -> None:
    (model / "policy").write_text("pinned 8\n")
    server.line(r"policy 'pinned 8' asks for version 8, which is not in the folder")
    (model / "policy").write_text("label nowhere\n")
    server.line(r"policy 'label nowhere' names a label that is not there; jaxport promote MODEL VERSION")
    assert asked(server) == 3 and server.health("mlp") == "SERVING"
