"""A trained transformer, exported by one command for three platforms and in three more formats."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from converters import open_bundle
from converters.run import compiled_runner
from tests.formats.conftest import ROOT, jaxport

BLOCK = re.compile(r"```python\n(.*?)```", re.S)


def test_the_export_says_what_it_proved_and_how_to_serve_it(exported: str, tiny: Path) -> None:
    for name, runtime in (("savedmodel", "tensorflow"), ("stablehlo", "iree"), ("onnx", "onnxruntime")):
        assert re.search(
            rf"{name}: the goldens reproduced by {runtime} \S+, worst difference \S*e-0[67]", exported
        )
    assert f"--model_name=tiny --model_base_path={tiny}/savedmodel" in exported


def test_the_manifest_has_every_file_and_the_order_of_arguments(tiny: Path) -> None:
    manifest = open_bundle(tiny).manifest
    facts = manifest.formats
    assert facts["savedmodel"]["platforms"] == ["cpu", "cuda"]
    assert facts["savedmodel"]["signatures"] == {"serving_default": "predict"}
    order = facts["stablehlo"]["signatures"]["predict"]
    assert order["weights"] == [w.name for w in manifest.weights]
    assert (order["inputs"], order["outputs"]) == (["tokens"], ["logits"])
    assert order["files"] == {"1": "stablehlo/predict.b1.mlirbc"}
    assert {"onnx/predict.onnx", "savedmodel/1/saved_model.pb", *order["files"].values()} <= set(
        manifest.files
    )
    head = (tiny / order["files"]["1"]).read_bytes()[:40]
    assert f"StableHLO_v{facts['stablehlo']['stablehlo_version']}".encode() in head


def test_tensorflow_alone_answers_as_the_program(tiny: Path, tmp_path: Path) -> None:
    bundle = open_bundle(tiny)
    given, files = {}, []
    for rows in (1, 3, 5):
        given[rows] = np.random.default_rng(rows).integers(0, 256, (rows, 256)).astype(np.int32)
        np.savez(tmp_path / f"in{rows}.npz", tokens=given[rows])
        files += [str(tmp_path / f"in{rows}.npz"), str(tmp_path / f"out{rows}.npz")]
    script = ROOT / "tests" / "formats" / "ask_tensorflow.py"
    command = [sys.executable, "-I", str(script), str(tiny / "savedmodel" / "1"), "serving_default"]
    subprocess.run([*command, *files], check=True)
    run = compiled_runner(bundle.exported(), bundle.load_weights())
    for rows, tokens in given.items():
        with np.load(tmp_path / f"out{rows}.npz") as out:
            np.testing.assert_allclose(out["logits"], run({"tokens": tokens})["logits"], atol=1e-5)


def test_verify_runs_each_format_and_says_what_it_cannot(tiny: Path) -> None:
    done = jaxport("verify", str(tiny), cwd=tiny)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "cuda, tpu: lowered only, this machine is cpu" in lines
    for name, count, runtime in (
        ("savedmodel", 2, "tensorflow"),
        ("stablehlo", 1, "iree"),
        ("onnx", 2, "onnxruntime"),
    ):
        ran = f"{name}: {count} goldens reproduced by {runtime} "
        assert any(line.startswith(ran) for line in lines), lines


def test_the_code_of_the_documents_gives_one_answer(tiny: Path, work: Path) -> None:
    bundle = open_bundle(tiny)
    tokens = np.full((1, 256), 32, np.int32)
    logits = compiled_runner(bundle.exported(), bundle.load_weights())({"tokens": tokens})["logits"]
    blocks = BLOCK.findall((ROOT / "docs" / "formats.md").read_text())
    assert len(blocks) == 3
    for block in blocks:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{block}"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=work, capture_output=True, text=True, check=False
        )
        assert done.stdout.split() == [str(logits[0, -1].argmax())], done.stderr
