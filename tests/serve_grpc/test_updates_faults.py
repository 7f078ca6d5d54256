"""Folders that cannot be read, a volume that is not mounted, and versions whose files are put in the place of others."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.archive import REFUSED, unpacked
from tests.serve_grpc import bundles
from tests.server_process import ServerProcess, eventually, publish

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
UNREADABLE = "n" * 300  # a link to a name too long: even root gets an error of it, and not "not found"


def serves(server: ServerProcess, seed: int, model: str = "mlp", **fields: object) -> bool:
    wanted = np.asarray(bundles.mlp(bundles.mlp_params(seed), X)["logits"])
    return np.allclose(server.predict(model, {"x": X}, **fields)["logits"], wanted, atol=1e-5, rtol=1e-5)


def problems(server: ServerProcess, model: str) -> list[str]:
    models = json.loads(server.get("/status.json")[1])["models"]
    return next((each["problems"] for each in models if each["name"] == model), [])


@pytest.fixture(scope="module")
def server(versions: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Ready although one model's folder cannot be read and another's newest version cannot."""
    folder = tmp_path_factory.mktemp("faults")
    publish(versions / "1", folder / "mlp" / "1")
    publish(versions / "1", folder / "other" / "1")
    (folder / "other" / "2").symlink_to(UNREADABLE)
    (folder / "closed").symlink_to(UNREADABLE)
    (unpacked(REFUSED, tmp_path_factory.mktemp("archive")) / "mlp").rename(folder / "past")
    with ServerProcess(folder, "--max-batch", "2", "--cache-dir", str(cache)) as process:
        yield process.ready()
        assert process.alive
        assert process.metric("jaxport_compiles_after_ready_total") == 0


def test_a_program_that_is_too_old_for_this_jax_is_refused_as_that(server: ServerProcess) -> None:
    server.line(
        r"refused model=past version=1: .*past/1: jax .* cannot read this program of jaxlib 0\.8\.0, for releases "
        r"from 2025-09-24 to 2026-04-15: export its function again with this one"
    )
    assert server.state("past") == {1: "FAILED"}
    assert server.metric("jaxport_load_failures_total", model="past", reason="window") == 1
    assert server.metric("jaxport_load_failures_total", model="past", reason="bundle") == 0


def test_a_folder_that_cannot_be_read_is_named_and_the_other_models_go_on(
    server: ServerProcess, versions: Path
) -> None:
    server.line(r"refused model=other version=2: .*other/2/manifest.json: File name too long")
    assert server.state("other") == {1: "SERVING", 2: "FAILED"} and serves(server, 1, "other")
    assert server.metric("jaxport_load_failures_total", model="other") == 1
    server.line(r"policy model=closed: .*/closed: File name too long; what is loaded")
    assert server.metric("jaxport_policy_problems_total", model="closed") == 1
    assert "/closed: File name too long" in problems(server, "closed")[0]
    assert "closed: File name too long" in server.get("/")[1]

    publish(versions / "2", server.models / "mlp" / "2")
    eventually(lambda: server.state("mlp") == {2: "SERVING"}, "an update of another model is loaded")
    shutil.move(server.models / "other", server.models / ".other")
    (server.models / "other").symlink_to(UNREADABLE)
    server.line(r"policy model=other: .*/other: File name too long")
    publish(versions / "3", server.models / "mlp" / "3")
    eventually(lambda: server.state("mlp") == {3: "SERVING"}, "two polls later")
    assert serves(server, 1, "other"), "what was loaded stays"
    (server.models / "other").unlink()
    (server.models / ".other" / "2").unlink()
    shutil.move(server.models / ".other", server.models / "other")
    (server.models / "closed").unlink()
    eventually(lambda: not problems(server, "other") + problems(server, "closed"), "it can be read again")
    assert sum("too long" in line for line in server.lines) == 3, "each is named once"


def test_a_folder_without_models_in_place_of_the_one_before_unloads_nothing(server: ServerProcess) -> None:
    away = server.models.with_name(f"{server.models.name}.away")
    server.models.rename(away)
    server.models.mkdir()
    server.line("cannot read models in .*another folder than before")
    server.models.rmdir()
    server.models.write_text("in the way")
    server.line("cannot read .*: not a folder")
    assert server.state("mlp") and server.state("other")
    server.models.unlink()
    away.rename(server.models)


def replace_in_place(source: Path, target: Path) -> None:
    """As a careful person does: the folder is never half there."""
    shutil.copytree(source, target.parent / ".new")
    target.rename(target.parent / ".old")
    (target.parent / ".new").rename(target)
    shutil.rmtree(target.parent / ".old")


def test_a_version_replaced_under_its_number_is_loaded_anew_or_named(
    server: ServerProcess, versions: Path, tmp_path: Path
) -> None:
    folder = server.models / "again"
    publish(versions / "1", folder / "1")
    (folder / "labels").mkdir()
    (folder / "labels" / "stable").write_text("1\n")
    eventually(lambda: server.state("again") == {1: "SERVING"}, "version 1 serves")
    assert serves(server, 1, "again")
    replace_in_place(versions / "2", folder / "1")
    eventually(
        lambda: serves(server, 2, "again", label="stable"), "the new files serve under the same number"
    )
    assert serves(server, 2, "again") and server.state("again") == {1: "SERVING"}
    server.line("replaced model=again version=1: its folder holds another bundle now")
    assert server.metric("jaxport_queue_depth", model="again") == 0
    assert 'jaxport_queue_depth{model="again"' in server.get("/metrics")[1], "the gauges are the new one's"

    shutil.copytree(versions / "3", tmp_path / "bad")
    golden = tmp_path / "bad" / "golden/predict.npz"
    golden.write_bytes(golden.read_bytes()[:-1])
    replace_in_place(tmp_path / "bad", folder / "1")
    server.line(r"refused model=again version=1: .*golden/predict.npz: altered or damaged")
    eventually(lambda: bool(problems(server, "again")), "the page says so")
    assert "version 1: its folder holds another bundle" in problems(server, "again")[0]
    assert "publish it under a new number" in problems(server, "again")[0]
    assert server.metric("jaxport_load_failures_total", model="again") == 1
    assert server.metric("jaxport_policy_problems_total", model="again") == 1
    assert serves(server, 2, "again") and server.state("again") == {1: "SERVING"}

    replace_in_place(versions / "2", folder / "1")
    eventually(lambda: not problems(server, "again"), "what serves is in the folder again")
    replace_in_place(versions / "4", folder / "1")
    eventually(lambda: serves(server, 4, "again"), "another good one serves")
