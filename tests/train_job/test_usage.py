"""What a run makes of its devices and its time, against figures made by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train_job.flops import PEAKS, peak_flops, training_flops
from train_job.presets import get_preset
from train_job.steps import model_flops
from train_job.usage import Usage


def test_a_transformer_needs_what_palm_counts() -> None:
    """6 operations per weight of a product and token, and 12 layers x width x time per token for attention."""
    preset = get_preset("nano")
    model, rows = preset.model, 8
    tokens = rows * model.context  # type: ignore[attr-defined]
    weights = model.layers * 12 * model.d_model**2 + model.d_model * model.vocab  # type: ignore[attr-defined]
    attention = 12 * model.layers * model.d_model * model.context  # type: ignore[attr-defined]
    batch = {"tokens": np.zeros((rows, model.context + 1), np.uint8)}  # type: ignore[attr-defined]
    assert model_flops(preset, batch) == tokens * (6 * weights + attention)


def scanned(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, _: (x @ x, None), x, length=7)[0]


def convolved(x: jax.Array) -> jax.Array:
    """[2, 8, 4] with a kernel of 3 by 4 to 5 channels, stride 2."""
    kernel = jnp.ones((3, 4, 5))
    return jax.lax.conv_general_dilated(
        x[None].repeat(2, 0), kernel, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


@pytest.mark.parametrize(
    ("function", "shape", "forward"),
    [
        (lambda x: x @ x, (4, 4), 2 * 4**3),
        (lambda x: jnp.einsum("bij,bkj->bik", x, x), (3, 4, 5), 2 * 3 * 4 * 4 * 5),
        (jax.jit(jax.checkpoint(lambda x: jax.nn.relu(x @ x))), (4, 4), 2 * 4**3),
        (scanned, (4, 4), 7 * 2 * 4**3),
        (lambda x: jax.lax.cond(x.sum() > 0, lambda x: x @ x, lambda x: x, x), (4, 4), 2 * 4**3),
        (convolved, (8, 4), 2 * (2 * 4 * 5) * (3 * 4)),
        (lambda x: x + x, (4, 4), 0),
    ],
)
def test_products_are_counted_wherever_they_are(
    function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], forward: int
) -> None:
    assert training_flops(jax.make_jaxpr(function)(jnp.ones(shape)).jaxpr) == 3 * forward


def test_a_peak_is_that_of_the_units_that_the_products_run_on() -> None:
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bfloat16", None) == 312e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32", None) == 156e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32", "highest") == 19.5e12
    assert peak_flops("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bfloat16", None) is None
    assert peak_flops("cpu", "float32", None) is None
    for peaks in PEAKS.values():
        assert peaks["float32"] < peaks["tensorfloat32"] < peaks["bfloat16"]


def test_goodput_is_the_share_of_all_time_that_went_into_steps_the_run_still_has() -> None:
    """100 s ago it began; 40 steps of 1 s were kept, 10 of 2 s without a row are as long as those after them."""
    rows = [{"step": 20, "step_seconds": 1.0}, {"step": 40, "step_seconds": 1.0}]
    usage = Usage(600, 1000.0, time.time() - 100, rows)
    figures = usage.figures(60, 2.0)
    assert figures["goodput"] == pytest.approx(0.8, rel=1e-3)
    assert figures["mfu"] == pytest.approx(600 / 2 / 1000)
    assert usage.figures(70, 1.0)["goodput"] == pytest.approx(0.9, rel=1e-3)


def test_what_is_not_known_is_left_out() -> None:
    """A device without a peak or without figures of its memory, as a CPU, and rows of a time before they had seconds."""
    assert Usage(0, None, time.time(), [{"step": 20}]).figures(40, 1.0).keys() == {"host_peak_memory_bytes"}


def test_the_memory_of_the_host_is_what_the_system_says_it_was_at_most() -> None:
    status = Path("/proc/self/status").read_text()
    now = int(status.split("VmRSS:")[1].split()[0]) * 1024
    assert now <= Usage(0, None, 0.0).figures(1, 1.0)["host_peak_memory_bytes"] * 1.01


def test_the_memory_is_that_of_the_fullest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        def __init__(self, peak: int) -> None:
            self.peak = peak

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_in_use": 1, "peak_bytes_in_use": self.peak}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device(5), Device(7)])
    assert Usage(0, None, 0.0).figures(1, 1.0)["peak_memory_bytes"] == 7
