"""One server on a unix socket, and Envoy before it, shared by every test that leaves both as they are."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.front.proxy import Proxy
from tests.server_process import ServerProcess

NewProxy = Callable[..., Proxy]


@pytest.fixture(scope="session")
def served(models: Path, slow_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """echo, mlp and tokens, and slow, whose runs take a tenth of a second."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("echo", "mlp", "tokens"):
        (folder / name).symlink_to(models / name)
    (folder / "slow").symlink_to(slow_models / "slow")
    return folder


@pytest.fixture(scope="session")
def server(served: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """As a pod runs it, but with a queue that holds an answer beyond the limit of messages."""
    socket = tmp_path_factory.mktemp("s") / "grpc.sock"
    flags = (
        "--grpc-socket",
        str(socket),
        "--transport",
        "native",
        "--no-http-predict",
        "--cache-dir",
        str(cache),
    )
    with ServerProcess(served, *flags, "--max-queue", "200000", "--max-batch", "16") as process:
        yield process.ready()
        assert process.alive
        process.signal()
        assert process.wait() == 0, "".join(process.lines)


@pytest.fixture(scope="session")
def new_proxy(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> NewProxy:
    """Makes one more Envoy before the server, with what a test needs in place of what deploy/ has."""
    count = itertools.count()

    def make(*flags: str, changed: Mapping[str, str] | None = None) -> Proxy:
        folder = tmp_path_factory.mktemp(f"e{next(count)}-")
        (folder / "grpc.sock").symlink_to(server.grpc.removeprefix("unix:"))
        return Proxy(folder, *flags, changed=changed)

    return make


@pytest.fixture(scope="session")
def proxy(new_proxy: NewProxy) -> Iterator[Proxy]:
    """The configuration as it is."""
    with new_proxy() as envoy:
        yield envoy
