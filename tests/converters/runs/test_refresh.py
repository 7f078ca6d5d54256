"""A bundle is written anew from the run that it came of, and only what answers as it did is published."""

import json
import shutil
from collections.abc import Callable
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import jax
import pytest

from converters import from_run, refresh
from converters.bundle import list_versions, open_bundle
from converters.from_run import RunExport, export_run
from converters.manifest import Manifest
from converters.options import ExportOptions
from tests.conftest import Told
from tests.converters.conftest import export_iris
from tests.converters.runs.conftest import Made
from tests.converters.test_bundle import rewrite_manifest

FORMATS = {
    "savedmodel": {"path": "savedmodel/1", "platforms": ["cpu", "cuda"]},
    "stablehlo": {"platform": "cuda", "signatures": {"predict": {"files": {"16": "a", "1": "b"}}}},
}


@pytest.fixture
def root(made: Made, tmp_path: Path) -> Path:
    """A root with the run digits, and a bundle of it that may be spoilt."""
    shutil.copytree(made.root / "runs" / "digits", tmp_path / "work" / "runs" / "digits")
    shutil.copytree(made.models / "digits" / "1", tmp_path / "work" / "models" / "digits" / "1")
    return tmp_path / "work"


def says(root: Path, **provenance: Any) -> Path:
    """The bundle, with another provenance."""
    path = root / "models" / "digits" / "1"
    rewrite_manifest(path, lambda m: m["provenance"].update(provenance))
    return path


def refused(told: Told, path: Path, *flags: str) -> tuple[int, str]:
    """The code and the one line, and that nothing was published."""
    code, _, err = told("refresh", str(path), *flags)
    (line,) = err.splitlines()
    assert list_versions(path.parent) == [1] and not list(path.parent.glob(".claim*"))
    return code, line


def test_a_bundle_is_written_anew_with_its_settings(root: Path, told: Told) -> None:
    path = root / "models" / "digits" / "1"
    rewrite_manifest(path, lambda m: m.update(jax_version="0.11.2", platforms=["cpu"]))
    code, out, err = told("refresh", str(path))
    assert (code, err) == (0, "")
    assert f"2 goldens of {path} (jax 0.11.2) answered, " in out
    assert f"wrote {root}/models/digits/2: jax {jax.__version__}, loads in jaxlib released until" in out
    old, new = open_bundle(path), open_bundle(root / "models" / "digits" / "2")
    assert new.manifest.provenance["refreshes"]["version"] == 1
    assert new.manifest.provenance["refreshes"]["jax_version"] == "0.11.2"
    assert new.manifest.platforms == ("cpu",) and new.manifest.jaxlib_version == installed("jaxlib")
    elsewhere = {"git_commit", "refreshes"}  # of the folder that the command runs in
    assert {k: v for k, v in new.manifest.provenance.items() if k not in elsewhere} == {
        k: v for k, v in old.manifest.provenance.items() if k not in elsewhere
    }
    assert [w.sha256 for w in old.manifest.weights] == [w.sha256 for w in new.manifest.weights]
    assert "refreshes version 1, of jax 0.11.2" in told("inspect", str(new.path))[1]


def test_what_the_old_bundle_recorded_is_asked_for_again(
    made: Made, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[RunExport, Any]] = []

    def export(settings: RunExport, say: Callable[[str], None]) -> tuple[Path, bool]:
        asked.append((settings, jax.config.jax_default_matmul_precision))  # pyright: ignore[reportAttributeAccessIssue]
        return root, True

    monkeypatch.setattr(from_run, "export_run", export)
    path = says(root)
    rewrite_manifest(
        path, lambda m: m.update(matmul_precision="highest", allowed={"JP103": "on purpose"}, formats=FORMATS)
    )
    refresh.refresh(path)
    ((settings, precision),) = asked
    assert (settings.root, settings.run, settings.step, settings.name) == (root, "digits", "100", "digits")
    assert (settings.options.platforms, settings.dynamic_length) == (("cpu", "cuda"), False)
    assert settings.options.formats == {
        "savedmodel": {"platforms": ("cpu", "cuda")},
        "stablehlo": {"platform": "cuda", "batches": (1, 16)},
    }
    assert (precision, settings.options.allow) == ("highest", {"JP103": "on purpose"})
    assert jax.config.jax_default_matmul_precision is None  # pyright: ignore[reportAttributeAccessIssue]


def written_twice(root: Path, **settings: Any) -> tuple[Manifest, Manifest]:
    """What an export with these settings says, and what its refresh says."""
    path, _ = export_run(RunExport(root=root, run="digits", **settings))
    return open_bundle(path).manifest, open_bundle(refresh.refresh(path).path).manifest


@pytest.mark.parametrize(
    "settings", [{"fixed_batches": (1, 4)}, {"options": ExportOptions(platforms=("cpu",), vjp_order=1)}]
)
def test_batches_and_gradients_are_those_of_the_old_bundle(settings: dict[str, Any], root: Path) -> None:
    old, new = written_twice(root, **settings)
    (before,), (now,) = old.signatures.values(), new.signatures.values()
    assert before == now and (now.batches or now.vjp_order)
    besides = [{name for name in m.files if not name.startswith("weights/")} for m in (old, new)]
    assert besides[0] == besides[1]


def test_fewer_bits_are_those_of_the_old_bundle_and_cost_next_to_no_accuracy(root: Path) -> None:
    old, new = written_twice(root, options=ExportOptions(platforms=("cpu",), weights_dtype="int8"))
    assert old.stored_weights == new.stored_weights is not None
    trained, stored = (new.provenance["held_out"][which]["val_accuracy"] for which in ("as_trained", "int8"))
    assert trained > 0.5 and abs(trained - stored) < 0.02
    assert old.provenance["held_out"] == new.provenance["held_out"]


def test_what_answers_otherwise_is_not_published(root: Path, told: Told) -> None:
    """The bundle is of the last step, and says that it is of an earlier one."""
    path = says(root, step=80)
    code, line = refused(told, path)
    assert code == 3
    assert f"error: {path} predict batch 1 on cpu: output 'logits' is off by" in line


def test_a_signature_that_has_changed_is_not_published(root: Path, told: Told) -> None:
    path = root / "models" / "digits" / "1"
    rewrite_manifest(path, lambda m: m["signatures"]["predict"]["outputs"][0].update(dtype="float16"))
    code, line = refused(told, path)
    assert code == 3 and "logits float16[b, 10] and would be" in line and "the preset has changed" in line


def test_a_step_that_is_gone_is_named(root: Path, told: Told) -> None:
    path = says(root, step=7)
    code, line = refused(told, path)
    assert code == 2
    assert f"error: {path}: comes of step 7 of run 'digits', which is needed below {root}/runs (" in line
    assert "jaxport export --run digits --name digits" in line


def test_a_run_that_is_gone_is_named(root: Path, told: Told) -> None:
    path = root / "models" / "digits" / "1"
    (root / "runs" / "digits").rename(root / "runs" / "other")
    code, line = refused(told, path)
    assert code == 2 and "comes of step 100 of run 'digits'" in line and "present: other" in line
    code, line = refused(told, path, "--root", str(root / "elsewhere"))
    assert code == 2 and f"needed below {root}/elsewhere/runs" in line


def test_another_run_of_the_same_name_is_not_taken_for_it(root: Path, told: Told) -> None:
    path = says(root, run_created_at="2020-01-01T00:00:00+00:00")
    code, line = refused(told, path)
    assert code == 2 and "another run 'digits' than the one in" in line and "run_created_at was 2020" in line


def test_a_bundle_of_a_function_says_what_to_run(tmp_path: Path, told: Told) -> None:
    path = export_iris(tmp_path / "models" / "iris" / "1")
    code, line = refused(told, path)
    assert code == 2
    assert (
        "comes of function tests.converters.conftest:iris" in line
        and "call export_bundle on it again" in line
    )
    rewrite_manifest(path, lambda m: m["provenance"].update(params="checkpoint"))
    assert "--params checkpoint --name iris" in refused(told, path)[1]


def test_a_bundle_that_lies_alone_needs_a_root(root: Path, tmp_path: Path, told: Told) -> None:
    alone = shutil.copytree(root / "models" / "digits" / "1", tmp_path / "copy")
    code, _, err = told("refresh", str(alone), "--root", str(root))
    assert (code, err) == (0, "")
    assert list_versions(root / "models" / "digits") == [1, 2]
    text = (root / "models" / "digits" / "2" / "manifest.json").read_text()
    assert json.loads(text)["provenance"]["refreshes"]["version"] == 0
