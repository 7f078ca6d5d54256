"""A run of the transformer as a bundle for two devices, in a process that has them, by the commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

from converters.bundle import read_manifest
from tests.server_process import ROOT

COMMANDS = """
import sys
from jaxport.cli import main
run = ("export", "--run", "toy", "--root", sys.argv[1])
for command in (
    (*run, "--mesh", "data=2"),
    (*run, "--mesh", "tensor=2"),
    (*run, "--mesh", "tensor=2", "--skip-existing"),
    ("refresh", sys.argv[1] + "/models/toy/1"),
):
    print("exit", main(command), flush=True)
"""


def test_it_is_exported_on_the_models_own_rules_and_refreshed_on_as_many_devices(finished: Path) -> None:
    root = finished.parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'train_job'}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", COMMANDS, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == [
        "exit 2", "exit 0", "exit 0", "exit 0",
    ], done.stderr  # fmt: skip
    assert "--mesh data=2: of a run only tensor=N is known" in done.stderr
    assert "of run toy is exported already" in done.stdout and "goldens of" in done.stdout
    first, second = (read_manifest(root / "models" / "toy" / str(version)) for version in (1, 2))
    assert (first.nr_devices, first.platforms) == (2, ("cpu", "cuda"))
    assert second.provenance["refreshes"]["version"] == 1
    assert (second.mesh, second.shardings) == (first.mesh, first.shardings)
    assert first.shardings["blocks.0.attn.query.kernel"] == (None, "tensor")
    assert json.dumps(dict(first.mesh)) == '{"tensor": 2}'
