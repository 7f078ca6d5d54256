"""One server with a classifier and language models of one table, for everything that a client does."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from converters import SequenceSpec, TensorSpec, export_bundle
from jaxport import Client
from tests.converters.conftest import export_iris
from tests.server_process import ServerProcess
from tests.servers import running_server

CONTEXT = 16
USAGE = {
    "task": "next_token",
    "tokenizer": "bytes",
    "input": "tokens",
    "output": "logits",
    "context": str(CONTEXT),
}


def next_letter(params: Any, tokens: jax.Array) -> jax.Array:
    """Says that "b" follows "a", "c" follows "b", and so on around all 256 bytes."""
    return params["table"][tokens]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("served")
    export_iris(root / "models" / "iris" / "1")
    (root / "models" / "iris" / "labels").mkdir()
    (root / "models" / "iris" / "labels" / "stable").write_text("1\n")
    # letters takes windows of one length, phrases of any up to it.
    for name, shape, sequence in (
        ("letters", f"b, {CONTEXT}", None),
        ("phrases", "b, t", SequenceSpec("t", CONTEXT)),
    ):
        export_bundle(
            root / "models" / name / "1",
            next_letter,
            {"table": np.roll(np.eye(256, dtype=np.float32) * 9, 1, axis=1)},
            inputs={"tokens": TensorSpec("int32", shape)},
            outputs=("logits",),
            example={"tokens": np.arange(4 * CONTEXT, dtype=np.int32).reshape(4, CONTEXT)},
            usage=USAGE,
            sequence=sequence,
        )
    with running_server(root / "models", "--max-batch", "8") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc) as opened:
        yield opened
