"""One folder of real bundles and one server on it, shared by every test that leaves them as they are."""

from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest

from tests.serve_grpc import bundles
from tests.server_process import ServerProcess

# Its defaults skip what compiles in under a second.
JAX_CACHE = {
    "JAX_COMPILATION_CACHE_DIR": "",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


@pytest.fixture(scope="session", autouse=True)
def jax_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """JAX's own cache for the servers that are started here, so that the second one on a bundle compiles sooner."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in JAX_CACHE.items():
            patch.setenv(name, value or str(tmp_path_factory.mktemp("jax-cache")))
        yield


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compile caches with nothing in it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mlp, tokens, mixed, echo: never changed by a test."""
    folder = tmp_path_factory.mktemp("models")
    for export in (bundles.export_mlp, bundles.export_tokens, bundles.export_mixed, bundles.export_echo):
        export(folder)
    return folder


@pytest.fixture(scope="session")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sequence alone: never changed by a test."""
    folder = tmp_path_factory.mktemp("sequences")
    bundles.export_sequence(folder)
    return folder


@pytest.fixture(scope="session")
def one_model(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mlp alone, for servers that have to be there soon."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "mlp").symlink_to(models / "mlp")
    return folder


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mlp versions with other weights, to copy from: 1 to 4 the same program, 5 another."""
    folder = tmp_path_factory.mktemp("versions")
    for seed in range(1, 5):
        bundles.export_mlp(folder, seed, seed)
    bundles.export_mlp(
        folder, 5, 5, fn=lambda params, x: {"logits": jnp.negative(bundles.mlp(params, x)["logits"])}
    )
    return folder / "mlp"


@pytest.fixture(scope="session")
def slow_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """slow alone: a run takes about a tenth of a second."""
    folder = tmp_path_factory.mktemp("slow")
    bundles.export_slow(folder)
    return folder


@pytest.fixture(scope="session", params=["native", "grpcio"])
def transport(request: pytest.FixtureRequest) -> str:
    """Everything that uses it runs on both."""
    return request.param


@pytest.fixture(scope="session")
def server(models: Path, cache: Path, transport: str) -> Iterator[ServerProcess]:
    """A server that is ready, with small limits so that they can be met."""
    flags = (
        "--transport",
        transport,
        "--max-batch",
        "16",
        "--max-message-bytes",
        "4MiB",
        "--cache-dir",
        str(cache),
    )
    with ServerProcess(models, *flags) as process:
        yield process.ready()
        assert process.alive
        assert process.metric("jaxport_compiles_after_ready_total") == 0
        process.signal()
        assert process.wait() == 0
