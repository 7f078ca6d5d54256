"""The source of a bundle of a run, as `jaxport compare` looks for it."""

import shutil
from pathlib import Path

import jax
import pytest

from converters.bundle import open_bundle
from converters.compare.source import NoSource, find_source
from converters.from_run import RunExport, export_run
from converters.options import ExportOptions


def test_the_preset_of_a_run_is_its_source(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = export_run(RunExport(finished.parent.parent, "toy", options=ExportOptions(("cpu",))), print)
    bundle = open_bundle(path)
    weights = jax.device_put(bundle.load_weights())
    _, named = find_source(bundle, "predict", weights, "cpu")
    assert named == "preset toy_model:toy"

    import toy_model

    monkeypatch.delattr(toy_model, "toy")
    with pytest.raises(NoSource, match="holds no function 'toy'"):
        find_source(bundle, "predict", weights, "cpu")
    shutil.rmtree(path)
