"""verify asks a fresh process that has nothing but the bundle."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import converters
from converters.errors import BundleError, BundleNotFound, GoldenMismatch, PlatformMissing
from converters.verify import verify
from tests.converters.conftest import export_iris, iris_params
from tests.converters.test_bundle import rewrite_manifest
from tests.serve_grpc.bundles import export_every_dtype

READER = (
    "__init__",
    "errors",
    "manifest",
    "manifest_json",
    "signature_json",
    "fields",
    "cuts",
    "golden",
    "bundle",
    "window",
    "dims",
)
ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules.update(dict.fromkeys(("flax", "optax", "tensorflow", "train_job", "grpc")))
import numpy as np
from converters.bundle import open_bundle
bundle = open_bundle(sys.argv[2])
program, weights = bundle.exported(), bundle.load_weights()
for golden in bundle.goldens():
    outputs = {name: np.asarray(v) for name, v in program.call(weights, golden.inputs).items()}
    bundle.check_golden("predict", golden, outputs, "cpu")
    print("batch", golden.batch)
"""


def test_a_good_bundle_passes(iris_bundle: Path) -> None:
    verdict = verify(iris_bundle)
    assert (verdict.platform, verdict.goldens) == ("cpu", 2)
    assert verdict.worst_share <= 1


def test_the_reader_alone_reproduces_the_goldens(iris_bundle: Path, tmp_path: Path) -> None:
    """Nine files of this package and the libraries they name are all that a loader anywhere needs."""
    (tmp_path / "converters").mkdir()
    for name in READER:
        shutil.copy(Path(converters.__file__).parent / f"{name}.py", tmp_path / "converters")
    command = [sys.executable, "-I", "-c", ALONE, str(tmp_path), str(iris_bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["batch", "1", "batch", "3"], done.stderr


def test_weights_swapped_for_others_are_a_golden_mismatch(iris_bundle: Path, tmp_path: Path) -> None:
    """Every digest is right and the answer is wrong: only the goldens can tell."""
    path = Path(shutil.copytree(iris_bundle, tmp_path / "iris" / "1"))
    other = export_iris(tmp_path / "other" / "1", params=iris_params(seed=9))
    shutil.copy(other / "golden" / "predict.npz", path / "golden" / "predict.npz")
    entry = (other / "manifest.json").read_text()
    import json

    digest = json.loads(entry)["files"]["golden/predict.npz"]
    rewrite_manifest(path, lambda m: m["files"].update({"golden/predict.npz": digest}))
    with pytest.raises(GoldenMismatch, match=r"predict batch 1 on cpu: output 'logits' is off by .* allowed"):
        verify(path)


def test_what_the_child_refuses_is_what_the_caller_sees(iris_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleNotFound, match="no such folder"):
        verify(tmp_path / "none")
    path = Path(shutil.copytree(iris_bundle, tmp_path / "iris" / "1"))
    rewrite_manifest(path, lambda m: m.update(platforms=["cuda"]))
    with pytest.raises(PlatformMissing, match="has programs for cuda, this machine is cpu"):
        verify(path)
    (path / "programs" / "predict.jaxexport").write_bytes(b"not a program")
    with pytest.raises(BundleError, match=r"predict\.jaxexport: altered or damaged"):
        verify(path)


def test_bytes_with_a_right_digest_that_are_no_program_are_refused(iris_bundle: Path, tmp_path: Path) -> None:
    import hashlib

    path = Path(shutil.copytree(iris_bundle, tmp_path / "iris" / "1"))
    program = path / "programs" / "predict.jaxexport"
    program.write_bytes(program.read_bytes()[:200])
    digest = {"sha256": hashlib.sha256(program.read_bytes()).hexdigest(), "bytes": 200}
    rewrite_manifest(path, lambda m: m["files"].update({"programs/predict.jaxexport": digest}))
    with pytest.raises(BundleError):
        verify(path)


def test_a_program_keeps_its_64_bit_dtypes(tmp_path: Path) -> None:
    verdict = verify(export_every_dtype(tmp_path))
    assert (verdict.goldens, verdict.worst_share) == (2, 0)
