"""A version with a program for each of a few batches: the buckets are those, and any number of rows is answered."""

from pathlib import Path

import numpy as np
import pytest

from serve_grpc.cache import CompileCache, Published
from serve_grpc.cache_key import cache_key
from serve_grpc.device import open_device
from serve_grpc.loader import Loader
from serve_grpc.metrics import Metrics
from serve_grpc.settings import BatchSettings
from tests.serve_grpc import bundles
from tests.server_process import ServerProcess, eventually, publish

BATCHES = (1, 2, 4, 8)
WITHOUT_ONE = (2, 4)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("fixed") / "models"
    bundles.export_row_by_row(models, batches=BATCHES)
    bundles.export_row_by_row(models, name="even", batches=WITHOUT_ONE)
    return models


def check(server: ServerProcess, model: str, rows: int, seed: int = 0) -> None:
    given = bundles.row_by_row_rows(rows)
    want = given["x"] @ bundles.row_by_row_params(seed)["w"]
    np.testing.assert_allclose(server.predict(model, given)["y"], want, rtol=1e-5, atol=1e-5)


def test_any_number_of_rows_is_answered_by_the_batches_there_are(models: Path, tmp_path: Path) -> None:
    """And other weights swap in without a compile."""
    with ServerProcess(models, "--max-batch", "2") as server:
        server.ready()
        for model, batches in (("rows", BATCHES), ("even", WITHOUT_ONE)):
            timed = server.line(rf"loaded model={model} .*buckets_ms=(\S+) compiled=True").group(1)
            assert [int(pair.split(":")[0]) for pair in timed.split(",")] == list(batches)
            for rows in range(1, 10):
                check(server, model, rows)
        publish(bundles.export_row_by_row(tmp_path, 2, seed=3, batches=BATCHES), models / "rows" / "2")
        eventually(lambda: server.state("rows").get(2) == "SERVING", "version 2 serves")
        assert server.line(r"loaded model=rows version=2 .*compiled=False from=like")
        for rows in (1, 3, 9):
            check(server, "rows", rows, seed=3)
        assert server.metric("jaxport_compiles_after_ready_total") == 0


def test_the_compile_cache_has_every_batch_whatever_the_largest_bucket_may_be(
    models: Path, tmp_path: Path
) -> None:
    device = open_device()
    cache, path = CompileCache(tmp_path, cache_key(device, {})), models / "even" / "1"
    cache.prepare()
    published = Published(cache)
    Loader(device, BatchSettings(), Metrics(), cache, published.put).load("even", path, None)
    assert (published.count, published.failure) == (1, None)
    loader = Loader(device, BatchSettings(max_batch=1), Metrics(), cache)
    loaded = loader.load("even", path, None)
    assert not loader.compiled and tuple(loaded.programs["predict"].executables) == WITHOUT_ONE
