"""The models folder changes under a running server, in good ways and bad; what serves goes on serving."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.serve_grpc import bundles
from tests.server_process import ServerProcess, eventually, publish

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def wanted(seed: int) -> np.ndarray:
    return np.asarray(bundles.mlp(bundles.mlp_params(seed), X)["logits"])


@pytest.fixture(scope="module")
def running(versions: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """On a models folder with version 1; shared by the tests below."""
    folder = tmp_path_factory.mktemp("models")
    publish(versions / "1", folder / "mlp" / "1")
    with ServerProcess(folder, "--max-batch", "4", "--cache-dir", str(cache)) as process:
        yield process.ready()
        assert process.alive
        assert process.metric("jaxport_compiles_after_ready_total") == 0


@pytest.fixture
def server(running: ServerProcess, versions: Path) -> Iterator[ServerProcess]:
    """With version 1 alone and nothing in its log, as every test finds it."""
    running.lines.clear()
    yield running
    model = running.models / "mlp"
    if not (model / "1").is_dir():
        publish(versions / "1", model / "1")
    for path in model.iterdir():
        if path.name != "1":
            shutil.rmtree(path)
    eventually(lambda: running.state("mlp") == {1: "SERVING"}, "version 1 serves alone")


@pytest.fixture
def folder(server: ServerProcess) -> Path:
    return server.models


def serves(server: ServerProcess, seed: int) -> bool:
    return np.allclose(server.predict("mlp", {"x": X})["logits"], wanted(seed), atol=1e-5, rtol=1e-5)


def test_a_new_version_takes_over_and_is_compiled_only_when_its_program_is_new(
    server: ServerProcess, folder: Path, versions: Path
) -> None:
    swaps = server.metric("jaxport_swap_seconds_count", model="mlp")
    publish(versions / "2", folder / "mlp" / "2")
    eventually(lambda: server.state("mlp") == {2: "SERVING"}, "version 2 serves, 1 is gone")
    assert serves(server, 2)
    publish(versions / "5", folder / "mlp" / "5")
    eventually(lambda: server.state("mlp") == {5: "SERVING"}, "version 5 serves, 2 is gone")
    assert np.allclose(server.predict("mlp", {"x": X})["logits"], -wanted(5), atol=1e-5, rtol=1e-5)
    assert server.line(r"loaded model=mlp version=2 .*compiled=False")
    assert server.line(r"loaded model=mlp version=5 .*compiled=True")
    assert server.metric("jaxport_swap_seconds_count", model="mlp") == swaps + 2
    with pytest.raises(grpc.RpcError) as refused:
        server.predict("mlp", {"x": X}, version=1)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_a_damaged_version_is_named_and_the_one_before_goes_on(
    server: ServerProcess, folder: Path, versions: Path, damage: Callable[[Path], object]
) -> None:
    names = ["programs/predict.jaxexport", "golden/predict.npz", "manifest.json", "manifest.json.sha256"]
    names += [str(max((versions / "2" / "weights").rglob("*"), key=lambda p: p.is_file() * p.stat().st_size))]
    for number, name in enumerate(names, start=2):
        copy = folder / f".{number}"
        shutil.copytree(versions / "2", copy)
        path = copy / Path(name).relative_to(versions / "2") if name.startswith("/") else copy / name
        damage(path)
        copy.rename(folder / "mlp" / str(number))
        if damage is Path.unlink and name == "manifest.json":
            continue  # a folder without a manifest is no version at all
        server.line(rf"refused model=mlp version={number}: .*{path.name}")
        assert server.state("mlp")[number] == "FAILED"
        assert serves(server, 1)
    assert server.health() == server.health("mlp") == "SERVING"
    assert "FAILED" in server.get("/")[1]
    time.sleep(1)
    refusals = [line for line in server.lines if "refused" in line]
    assert len(refusals) == len(set(refusals)), "named once, not at every poll"


def test_a_refused_version_that_is_put_right_is_served(
    server: ServerProcess, folder: Path, versions: Path
) -> None:
    copy = folder / ".2"
    shutil.copytree(versions / "2", copy)
    flip(copy / "golden/predict.npz")
    copy.rename(folder / "mlp" / "2")
    server.line("refused model=mlp version=2")
    flip(folder / "mlp" / "2" / "golden/predict.npz")
    eventually(lambda: server.state("mlp") == {2: "SERVING"}, "version 2 serves")
    assert serves(server, 2)


def test_wrong_answers_on_this_device_are_refused(
    server: ServerProcess, folder: Path, versions: Path
) -> None:
    """Digests that are right and goldens that are not: only running them tells."""
    before = server.metric("jaxport_load_failures_total", reason="goldens")
    reseal(versions / "2", folder / ".2", golden=versions / "3" / "golden/predict.npz")
    (folder / ".2").rename(folder / "mlp" / "2")
    assert server.line(r"refused model=mlp version=2: .*logits.*off by")
    assert server.metric("jaxport_load_failures_total", reason="goldens") == before + 1
    assert serves(server, 1)


def test_a_bundle_for_another_platform_is_refused_in_one_line(
    server: ServerProcess, folder: Path, versions: Path
) -> None:
    reseal(versions / "2", folder / ".2", platforms=["cuda"])
    (folder / ".2").rename(folder / "mlp" / "2")
    assert server.line(r"refused model=mlp version=2: .*exported for cuda.*this device is cpu.*--platforms")
    assert serves(server, 1)


def test_a_version_that_is_being_written_is_not_seen(
    server: ServerProcess, folder: Path, versions: Path
) -> None:
    shutil.copytree(versions / "2", folder / "mlp" / ".3.writing")
    (folder / "mlp" / "4").mkdir()
    (folder / "mlp" / "notes").mkdir()
    time.sleep(1)
    assert server.state("mlp") == {1: "SERVING"}
    assert not [line for line in server.lines if "refused" in line]


def test_versions_that_vanish_while_they_are_loaded_do_no_harm(
    server: ServerProcess, folder: Path, versions: Path
) -> None:
    for number in range(2, 14):
        publish(versions / "2", folder / "mlp" / str(number))
        time.sleep(0.05 + 0.02 * number)
        shutil.rmtree(folder / "mlp" / str(number))
    eventually(lambda: server.state("mlp") == {1: "SERVING"}, "version 1 serves")
    assert serves(server, 1)


def test_removing_the_newest_version_goes_back_and_removing_all_unloads(
    server: ServerProcess, folder: Path, versions: Path
) -> None:
    publish(versions / "2", folder / "mlp" / "2")
    eventually(lambda: server.state("mlp") == {2: "SERVING"}, "version 2 serves")
    shutil.rmtree(folder / "mlp" / "2")
    eventually(lambda: server.state("mlp") == {1: "SERVING"}, "version 1 serves again")
    shutil.rmtree(folder / "mlp")
    eventually(lambda: server.state("mlp") == {}, "the model is unloaded")
    with pytest.raises(grpc.RpcError) as refused:
        server.predict("mlp", {"x": X})
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as refused:
        server.health("mlp")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert server.health() == "SERVING", "the server stays ready"
    publish(versions / "3", folder / "mlp" / "3")
    eventually(lambda: server.state("mlp") == {3: "SERVING"}, "version 3 serves")
    assert serves(server, 3)


def test_a_volume_that_goes_away_takes_nothing_down(server: ServerProcess, folder: Path) -> None:
    away = folder.with_name(f"{folder.name}.away")
    folder.rename(away)
    server.line("cannot read")
    time.sleep(1)
    assert serves(server, 1)
    away.rename(folder)
    time.sleep(0.5)
    assert server.state("mlp") == {1: "SERVING"}


def reseal(
    source: Path, target: Path, golden: Path | None = None, platforms: list[str] | None = None
) -> None:
    """A copy of a bundle with something replaced and every digest right."""
    from converters.bundle import digest_line

    shutil.copytree(source, target)
    manifest = json.loads((target / "manifest.json").read_bytes())
    if golden is not None:
        shutil.copy(golden, target / "golden/predict.npz")
        wrong = json.loads((golden.parent.parent / "manifest.json").read_bytes())
        manifest["files"]["golden/predict.npz"] = wrong["files"]["golden/predict.npz"]
    if platforms is not None:
        manifest["platforms"] = platforms
    data = json.dumps(manifest).encode()
    (target / "manifest.json").write_bytes(data)
    (target / "manifest.json.sha256").write_text(digest_line(data))
