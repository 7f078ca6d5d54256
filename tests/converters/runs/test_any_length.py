"""The transformer takes prompts of any length: what stands behind a position is not seen from it.

Exports of sequences are proven in tests/converters; here it is the model that has to bear a symbol for its length.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from converters import from_run
from converters.manifest import SequenceSpec
from converters.program import as_program, export_program
from converters.spec import SignatureSpec, TensorSpec, parse_inputs
from converters.weights import flatten_params
from train_job.presets import get_preset
from train_job.weights import initialise


def test_one_program_answers_every_length_as_the_model_does() -> None:
    preset = get_preset("toy_model:toy")
    signature, predict = preset.predict_signature, preset.predict_fn()
    sequence = SequenceSpec("t", signature.longest)
    flat = flatten_params(initialise(preset.model, seed=0))
    weights = flat.arrays
    _, inputs = parse_inputs({n: TensorSpec(*s) for n, s in signature.any_length.items()}, sequence)
    program = as_program(lambda params, **given: predict(params, given), flat.rebuild, signature.outputs)
    exported = export_program(program, weights, inputs, ("cpu", "cuda"), (f"t <= {sequence.most}",))
    tokens = preset.example_inputs(3, seed=1)["tokens"]
    want = np.asarray(jax.jit(predict)(weights, {"tokens": tokens})["logits"])
    short = np.asarray(jax.jit(exported.call)(weights, {"tokens": tokens[:, :7]})["logits"])
    assert short.shape == (3, 7, 256)
    np.testing.assert_allclose(short, want[:, :7], rtol=1e-5, atol=1e-5)


def test_a_run_is_exported_with_the_length_that_it_was_trained_with_or_any_up_to_it(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SignatureSpec] = []

    def export(_path: Path, _params: Any, specs: dict[str, SignatureSpec], _options: Any, **_: Any) -> Path:
        asked.extend(specs.values())
        return Path()

    monkeypatch.setattr(from_run, "export_signatures", export)
    for dynamic in (False, True):
        settings = from_run.RunExport(finished.parent.parent, finished.name, dynamic_length=dynamic)
        from_run.export_run(settings, lambda _: None)
    fixed, free = asked
    assert (fixed.inputs, fixed.sequence) == ({"tokens": TensorSpec("int32", "b, 16")}, None)
    assert (free.inputs, free.sequence) == (
        {"tokens": TensorSpec("int32", "b, t")},
        SequenceSpec("t", 16),
    )
