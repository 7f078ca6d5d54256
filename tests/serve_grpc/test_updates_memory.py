"""Versions that fit only alone, under a running server: refused with numbers, or swapped with a gap."""

import shutil
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

from converters import TensorSpec, export_bundle
from tests.serve_grpc.test_updates import reseal, wanted
from tests.server_process import ServerProcess, eventually, predict_call, publish, request

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
# One of the 4-64-64-3 MLP and a run of it; not two.
LIMIT = "30kB"


@pytest.fixture
def folder(versions: Path, tmp_path: Path) -> Path:
    publish(versions / "1", tmp_path / "mlp" / "1")
    return tmp_path


def export_wide(models: Path) -> None:
    """40 kB of weights."""
    export_bundle(
        models / "wide" / "1",
        lambda params, x: {"y": x @ params["w"]},
        {"w": np.ones((100, 100), np.float32)},
        inputs={"x": TensorSpec("float32", "b, 100")},
        outputs=("y",),
        example={"x": np.arange(300, dtype=np.float32).reshape(3, 100)},
    )


def serves(server: ServerProcess, seed: int) -> bool:
    return np.allclose(server.predict("mlp", {"x": X})["logits"], wanted(seed), atol=1e-5, rtol=1e-5)


def ask(server: ServerProcess, stop: threading.Event, codes: list[grpc.StatusCode]) -> None:
    """Until `stop`, one request after the other."""
    call = predict_call(server.channel)
    while not stop.is_set():
        try:
            call(request("mlp", {"x": X}), timeout=20)
            codes.append(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            codes.append(error.code())


def test_a_version_that_does_not_fit_beside_the_old_one_is_refused_with_the_numbers(
    folder: Path, versions: Path, cache: Path
) -> None:
    flags = ("--max-batch", "2", "--cache-dir", str(cache), "--memory-limit", LIMIT)
    with ServerProcess(folder, *flags) as server:
        server.ready()
        publish(versions / "2", folder / "mlp" / "2")
        server.line(
            r"refused model=mlp version=2: beside version 1 it needs [12]\d.\d kB of --memory-limit and 11.3 kB is free "
            r"\(weights 18.7 kB, a run .* --swap unload-first frees version 1"
        )
        assert server.state("mlp") == {1: "SERVING", 2: "FAILED"}
        assert serves(server, 1)

        # Larger than all there is: not tried.
        export_wide(folder)
        server.line(r"refused model=wide version=1: it needs 4\d.* kB of --memory-limit and 11.3 kB is free")
        assert server.health("wide") == "NOT_SERVING" and server.health() == "SERVING"


def test_unload_first_swaps_with_a_gap_and_brings_the_old_one_back_when_the_new_one_fails(
    folder: Path, versions: Path, cache: Path
) -> None:
    flags = ("--max-batch", "2", "--cache-dir", str(cache), "--memory-limit", LIMIT)
    with ServerProcess(folder, *flags, "--swap", "unload-first") as server:
        server.ready()
        codes: list[grpc.StatusCode] = []
        stop = threading.Event()
        thread = threading.Thread(target=ask, args=(server, stop, codes))
        thread.start()
        try:
            publish(versions / "2", folder / "mlp" / "2")
            eventually(lambda: server.state("mlp") == {2: "SERVING"}, "version 2 serves")
            assert serves(server, 2) and server.health("mlp") == "SERVING"
            assert server.line(r"loaded model=mlp version=2 .*compiled=False")

            # Right digests, wrong answers: only running it tells, after version 2 has gone.
            reseal(versions / "1", folder / ".3", golden=versions / "3" / "golden/predict.npz")
            (folder / ".3").rename(folder / "mlp" / "3")
            server.line(
                r"refused model=mlp version=3: .*off by.*; version 2 was loaded again; change the files"
            )
            assert serves(server, 2) and server.health("mlp") == server.health() == "SERVING"
            assert server.metric("jaxport_load_failures_total", model="mlp", reason="goldens") == 1
            loaded = [line for line in server.lines if " loaded model=mlp version=2" in line]
            assert len(loaded) == 2 and all("compiled=False" in line for line in loaded), "".join(
                server.lines
            )

            # What reading tells costs no gap.
            shutil.copytree(versions / "3", folder / ".4")
            (folder / ".4" / "programs/predict.jaxexport").write_bytes(b"")
            (folder / ".4").rename(folder / "mlp" / "4")
            server.line("refused model=mlp version=4: .*predict.jaxexport")
            assert server.metric("jaxport_load_failures_total", model="mlp", reason="bundle") == 1
            assert sum("unloaded model=mlp" in line for line in server.lines) == 2
        finally:
            stop.set()
            thread.join()
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        assert codes.count(grpc.StatusCode.OK) > 10

        assert server.metric("jaxport_compiles_after_ready_total") == 0
