"""The architectures are the ones they say they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train_job.errors import UsageError
from train_job.presets import BUILT_IN, get_preset
from train_job.weights import initialise, skeleton


def count(name: str) -> int:
    return sum(leaf.size for leaf in skeleton(get_preset(name).model).abstract.values())


def test_tiny_has_exactly_the_weights_of_the_course() -> None:
    assert count("tiny") == 3_356_160


def test_nano_is_a_seventh_of_tiny() -> None:
    assert count("nano") == 470_528


def test_keys_are_flat_strings_that_name_the_place_in_the_module() -> None:
    assert {"blocks.0.attn.query.kernel", "blocks.3.mlp.down.bias", "head.kernel"} <= set(
        skeleton(get_preset("tiny").model).abstract
    )


def test_the_head_is_untied_and_has_no_bias() -> None:
    abstract = skeleton(get_preset("tiny").model).abstract
    assert "head.bias" not in abstract
    assert abstract["head.kernel"].shape == abstract["token_embed.embedding"].shape[::-1]


def test_a_byte_sees_only_what_came_before_it() -> None:
    preset = get_preset("nano")
    predict = jax.jit(preset.predict_fn())
    weights = initialise(preset.model, seed=0)
    tokens = preset.example_inputs(2, seed=0)["tokens"]
    changed = tokens.copy()
    changed[:, 40:] = 7
    before, after = (predict(weights, {"tokens": given})["logits"] for given in (tokens, changed))
    np.testing.assert_array_equal(before[:, :40], after[:, :40])
    assert not np.array_equal(before[:, 40:], after[:, 40:])


def test_fresh_weights_follow_from_the_seed_alone() -> None:
    model = get_preset("digits").model
    first, again, other = (initialise(model, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)


def test_fresh_logits_are_close_to_a_uniform_guess() -> None:
    preset = get_preset("nano")
    logits = jax.jit(preset.predict_fn())(initialise(preset.model, seed=0), preset.example_inputs(4, seed=0))[
        "logits"
    ]
    spread = jax.nn.logsumexp(logits, axis=-1) - logits.mean(axis=-1)
    assert float(jnp.abs(spread - jnp.log(256)).max()) < 1.5


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_preset_predicts_what_its_signature_declares(name: str) -> None:
    preset = get_preset(name)
    signature = preset.predict_signature
    inputs = preset.example_inputs(3, seed=0)
    for key, (dtype, shape) in signature.inputs.items():
        assert inputs[key].dtype == dtype
        assert shape == ", ".join(["b", *map(str, inputs[key].shape[1:])])
    outputs = jax.eval_shape(preset.predict_fn(), skeleton(preset.model).abstract, inputs)
    assert tuple(outputs) == signature.outputs
    assert outputs["logits"].dtype == jnp.float32
    assert outputs["logits"].shape[0] == 3


def test_example_inputs_follow_from_the_seed() -> None:
    preset = get_preset("digits")
    first, again, other = (preset.example_inputs(5, seed)["pixels"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_prediction_has_one_program_for_every_batch_size() -> None:
    preset = get_preset("nano")
    (batch,) = jax.export.symbolic_shape("b")
    weights = skeleton(preset.model).abstract
    exported = jax.export.export(jax.jit(preset.predict_fn()))(
        weights, {"tokens": jax.ShapeDtypeStruct((batch, 64), jnp.int32)}
    )
    assert str(exported.out_avals[0].shape) == "(b, 64, 256)"


def test_weights_of_another_model_are_refused_by_name() -> None:
    preset = get_preset("digits")
    weights = initialise(preset.model, seed=0)
    del weights["head.bias"]
    with pytest.raises(UsageError, match=r"'head\.bias' is missing"):
        preset.predict_fn()(weights, preset.example_inputs(1, seed=0))


def test_random_state_inside_a_module_is_refused_with_the_cure() -> None:
    with pytest.raises(UsageError, match=r"random state 'rngs\.count'.*at the call"):
        skeleton(get_preset("toy_model:dropout").model)
