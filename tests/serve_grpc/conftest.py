"""One server on the bundles, shared by every test that leaves it as it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import ServerProcess


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
