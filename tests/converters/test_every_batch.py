"""The exported program of each built-in preset is its source function at every batch from 1 to 65, each bucket of a
server among them: both are compiled for the very batch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from converters.bundle import Bundle, open_bundle
from converters.errors import GoldenMismatch
from converters.export import TensorSpec, export_bundle
from converters.golden import Golden
from converters.run import to_host
from serve_grpc.buckets import candidates
from serve_grpc.settings import BatchSettings
from tests.once import OncePerRun
from train_job.presets import BUILT_IN, get_preset
from train_job.weights import initialise

MOST = 65
# A few at a time, so that those who run the tests side by side share them.
PARTS = [range(start, min(start + 13, MOST + 1)) for start in range(1, MOST + 1, 13)]


def exported(name: str, path: Path) -> Path:
    """The preset with fresh weights, as an export of its run would write it."""
    preset, signature = get_preset(name), get_preset(name).predict_signature
    predict = preset.predict_fn()
    return export_bundle(
        path,
        lambda params, **inputs: predict(params, inputs),
        initialise(preset.model, seed=0),
        inputs={key: TensorSpec(*spec) for key, spec in signature.inputs.items()},
        outputs=signature.outputs,
        example=preset.example_inputs(64, seed=0),
    )


def source(name: str, weights: Any) -> Callable[[Any], dict[str, np.ndarray]]:
    predict = jax.jit(get_preset(name).predict_fn())
    return lambda inputs: to_host(predict(weights, inputs))


def program(bundle: Bundle, weights: Any) -> Callable[[Any], dict[str, np.ndarray]]:
    call = jax.jit(bundle.exported().call)
    return lambda inputs: to_host(call(weights, inputs))


@pytest.mark.parametrize("batches", PARTS, ids=lambda part: f"{part[0]}-{part[-1]}")
@pytest.mark.parametrize("name", BUILT_IN)
def test_it_is_the_source_function(name: str, batches: range, once: OncePerRun) -> None:
    models = once.folder(f"every-batch-{name}", lambda folder: exported(name, folder / name / "1"))
    bundle = open_bundle(models / name / "1")
    weights = jax.device_put(bundle.load_weights())
    wanted, found = source(name, weights), program(bundle, weights)
    rows = get_preset(name).example_inputs(MOST, seed=1)
    for batch in batches:
        inputs = {key: value[:batch] for key, value in rows.items()}
        golden = Golden(batch, inputs, wanted(inputs))
        bundle.check_golden(
            "predict", golden, found(inputs), "cpu"
        )  # refuses what is outside of the manifest's tolerance


@pytest.mark.parametrize("name", BUILT_IN)
def test_another_function_would_be_seen(name: str, once: OncePerRun) -> None:
    models = once.folder(f"every-batch-{name}", lambda folder: exported(name, folder / name / "1"))
    bundle = open_bundle(models / name / "1")
    inputs = get_preset(name).example_inputs(2, seed=1)
    got = program(bundle, bundle.load_weights())(inputs)
    other = initialise(get_preset(name).model, seed=1)
    with pytest.raises(GoldenMismatch):
        bundle.check_golden("predict", Golden(2, inputs, source(name, other)(inputs)), got, "cpu")


def test_the_batches_are_all_and_every_bucket_is_among_them() -> None:
    batches = [batch for part in PARTS for batch in part]
    assert batches == list(range(1, MOST + 1))
    assert set(candidates(BatchSettings.max_batch)) <= set(batches)
