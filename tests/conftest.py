"""Bundles that tests in several folders serve, exported once in a run; and JAX's cache."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxport.cli import main
from tests.once import OncePerRun
from tests.serve_grpc import bundles

# Its defaults skip what compiles in under a second.
JAX_CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs `jaxport` in this process, which spares the seconds that its imports take anew.

    Returns its exit code, standard output and standard error.
    """

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as left:  # argparse's way out
            assert isinstance(left.code, int)
            code = left.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> OncePerRun:
    return OncePerRun(tmp_path_factory)


@pytest.fixture(scope="module", autouse=True)
def jax_as_it_was() -> Iterator[None]:
    """A device that is opened here sets JAX up for serving; the tests after it find it as it is elsewhere."""
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="session", autouse=True)
def jax_cache(once: OncePerRun) -> Iterator[Path]:
    """JAX's own cache for every process that is started: a program is compiled once in a run.

    Not for the tests' own processes: an executable that came from it does not load from a second cache.
    """
    folder = once.folder("jax-cache", lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"JAX_COMPILATION_CACHE_DIR": str(folder), **JAX_CACHE}.items():
            patch.setenv(name, value)
        yield folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compile caches with nothing in it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def models(once: OncePerRun) -> Path:
    """mlp, tokens, mixed, echo: never changed by a test."""

    def export(folder: Path) -> None:
        for each in (bundles.export_mlp, bundles.export_tokens, bundles.export_mixed, bundles.export_echo):
            each(folder)

    return once.folder("models", export)


@pytest.fixture(scope="session")
def sequences(once: OncePerRun) -> Path:
    """sequence alone: never changed by a test."""
    return once.folder("sequences", bundles.export_sequence)


@pytest.fixture(scope="session")
def sharded(once: OncePerRun) -> Path:
    """models/wide for two devices and models/one like it for one, their cache, and coming/wide/2 with other weights.

    facts.json: what was found of the wide one by a process with two devices. To be read only.
    """
    from tests.sharded import made_by_two  # what serves is not in every venv that tests run in

    return once.folder("sharded", made_by_two)


@pytest.fixture(scope="session")
def one_model(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mlp alone, for servers that have to be there soon."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "mlp").symlink_to(models / "mlp")
    return folder


@pytest.fixture(scope="session")
def versions(once: OncePerRun) -> Path:
    """mlp versions with other weights, to copy from: 1 to 4 the same program, 5 another."""

    def export(folder: Path) -> None:
        for seed in range(1, 5):
            bundles.export_mlp(folder, seed, seed)
        bundles.export_mlp(
            folder, 5, 5, fn=lambda params, x: {"logits": jnp.negative(bundles.mlp(params, x)["logits"])}
        )

    return once.folder("versions", export) / "mlp"


@pytest.fixture(scope="session")
def slow_models(once: OncePerRun) -> Path:
    """slow alone: a run takes about a tenth of a second."""
    return once.folder("slow", bundles.export_slow)


@pytest.fixture(scope="session", params=["native", "grpcio"])
def transport(request: pytest.FixtureRequest) -> str:
    """Everything that uses it runs on both."""
    return request.param
