"""The preset `tiny` as a bundle: small, reproducible, and equal to the model without its source."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from converters import TensorSpec, export_bundle
from converters.bundle import open_bundle
from converters.program import constants
from tests.once import OncePerRun
from train_job.presets import get_preset
from train_job.weights import initialise

ROOT = Path(__file__).resolve().parents[2]
BATCHES = (1, 3, 8)
LOADER = """
import sys
import numpy as np
sys.modules.update(dict.fromkeys(("flax", "optax", "train_job")))
sys.path.insert(0, sys.argv[1])
from converters.bundle import open_bundle
bundle = open_bundle(sys.argv[2])
program, weights = bundle.exported(), bundle.load_weights()
with np.load(sys.argv[3]) as inputs:
    np.savez(sys.argv[4], **{n: np.asarray(program.call(weights, {"tokens": t})["logits"]) for n, t in inputs.items()})
"""
EXPORT = """
import hashlib, sys
from converters.program import as_program, export_program
from converters.spec import TensorSpec, parse_inputs
from converters.weights import flatten_params
from train_job.presets import get_preset
from train_job.weights import initialise
tiny = get_preset("tiny")
predict = tiny.predict_fn()
weights = flatten_params(initialise(tiny.model, seed=0))
_, inputs = parse_inputs({n: TensorSpec(*s) for n, s in tiny.predict_signature.inputs.items()})
program = as_program(lambda params, **given: predict(params, given), weights.rebuild, tiny.predict_signature.outputs)
open(sys.argv[1], "wb").write(export_program(program, weights.arrays, inputs, ("cpu", "cuda")).serialize())
print(sys.modules["train_job"].__file__)
"""


@pytest.fixture(scope="module")
def bundle(once: OncePerRun) -> Path:
    def export(models: Path) -> None:
        tiny = get_preset("tiny")
        predict = tiny.predict_fn()
        export_bundle(
            models / "tiny" / "1",
            lambda params, **inputs: predict(params, inputs),
            initialise(tiny.model, seed=0),
            inputs={name: TensorSpec(*spec) for name, spec in tiny.predict_signature.inputs.items()},
            outputs=tiny.predict_signature.outputs,
            example=tiny.example_inputs(8, seed=0),
        )

    return once.folder("tiny", export) / "tiny" / "1"


def test_the_program_is_small_and_holds_no_constant(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert sum(int(np.prod(w.shape)) for w in opened.manifest.weights) == 3_356_160
    assert opened.manifest.files["programs/predict.jaxexport"].bytes < 64 << 10
    assert opened.exported().platforms == ("cpu", "cuda")
    assert [size for _, size in constants(opened.exported()) if size > 1 << 10] == []


def test_it_answers_as_the_model_does_where_flax_cannot_be_imported(bundle: Path, tmp_path: Path) -> None:
    tiny = get_preset("tiny")
    weights, predict = initialise(tiny.model, seed=0), jax.jit(tiny.predict_fn())
    inputs = {str(rows): tiny.example_inputs(rows, seed=rows)["tokens"] for rows in BATCHES}
    np.savez(tmp_path / "in.npz", **inputs)  # pyright: ignore[reportArgumentType]
    command = [sys.executable, "-I", "-c", LOADER, ROOT, bundle, tmp_path / "in.npz", tmp_path / "out.npz"]
    subprocess.run([str(part) for part in command], check=True)
    with np.load(tmp_path / "out.npz") as got:
        for rows, tokens in inputs.items():
            want = np.asarray(predict(weights, {"tokens": tokens})["logits"])
            assert got[rows].shape == (int(rows), 256, 256)
            np.testing.assert_allclose(got[rows], want, rtol=1e-5, atol=1e-5)


def test_two_checkouts_export_byte_identical_programs_without_a_path(tmp_path: Path) -> None:
    programs = []
    for name in ("one", "another/deeper"):
        checkout = tmp_path / name
        for package in ("converters", "train_job"):
            shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-c", EXPORT, str(checkout / "program")]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(
            command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
        )
        assert done.stdout.strip() == str(checkout / "train_job" / "__init__.py")
        programs.append((checkout / "program").read_bytes())
    assert programs[0] == programs[1]
    for trace in (b".py", b"train_job", str(tmp_path).encode(), str(ROOT).encode()):
        assert trace not in programs[0]
