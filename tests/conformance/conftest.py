"""One bundle that has every dtype, a server on each transport, and the clients in their own venv."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.serve_grpc.bundles import EVERY_DTYPE, export_every_dtype
from tests.server_process import ROOT, ServerProcess

MODEL = "every_dtype"
TRANSPORTS = ("grpcio", "native")
CLIENTS = ROOT / ".venv-conformance" / "bin" / "python"
ROWS = 5

Tensor = list  # [dtype, shape, hex]


@pytest.fixture(scope="session")
def inputs() -> dict[str, Tensor]:
    """Random bits of every dtype: NaN of any payload, subnormals, both ends of the integers."""
    bits = np.random.default_rng(11)
    made = {}
    for dtype in EVERY_DTYPE:
        raw = bits.integers(0, 256, ROWS * 3 * jnp.dtype(dtype).itemsize, np.uint8)
        data = raw % 2 if dtype == "bool" else raw
        made[dtype] = [dtype, [ROWS, 3], data.tobytes().hex()]
    return made


@pytest.fixture(scope="session")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Of the servers, in the order of TRANSPORTS."""
    root = tmp_path_factory.mktemp("conformance")
    export_every_dtype(root / "models")
    labels = root / "models" / MODEL / "labels"
    labels.mkdir()
    (labels / "stable").write_text("1\n")
    flags = ("--max-batch", "4", "--cache-dir", str(root / "cache"))
    with ExitStack() as stack:
        servers = []
        for transport in TRANSPORTS:
            server = ServerProcess(root / "models", *flags, "--transport", transport)
            servers.append(stack.enter_context(server).ready())
        yield [server.grpc for server in servers]
        assert all(server.alive for server in servers)


def ask(script: str, addresses: list[str], inputs: dict[str, Tensor]) -> dict[str, Any]:
    """transport -> what the client's script says of the server there."""
    if not CLIENTS.exists():
        pytest.fail(f"{CLIENTS} is missing; make test makes it")
    done = subprocess.run(
        [CLIENTS, Path(__file__).with_name(script)],
        input=json.dumps({"addresses": addresses, "model": MODEL, "inputs": inputs}),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(TRANSPORTS, json.loads(done.stdout), strict=True))
