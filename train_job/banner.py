"""What a run says before its first step: each choice with its reason."""

from __future__ import annotations

import math
import os

import jax

from train_job.compute import FLOAT32
from train_job.data.sources import name_of
from train_job.fingerprint import optimizer_name
from train_job.mesh import Layout, said
from train_job.presets import Dataset
from train_job.settings import TrainSettings
from train_job.state import TrainState, bytes_per_device
from train_job.weights import Weights


def banner(
    settings: TrainSettings,
    data: Dataset,
    layout: Layout,
    state: TrainState,
    start: int,
) -> str:
    """Several lines of "name  choice (reason)"."""
    lines = {
        "run": _run(settings, start),
        "device": _device(layout),
        "model": _model(settings, state.weights),
        "state": _state(state, layout),
        "data": _data(settings, data),
        "batch": _batch(settings),
        "parts": _parts(settings),
        "optimizer": _optimizer(settings),
        "clipping": _clipping(settings),
        "precision": _precision(settings),
        "memory": _memory(settings),
        "no number": _no_number(settings),
        "saves": _saves(settings),
    }
    for metric, base in data.baselines().items():
        lines["to beat"] = f"{metric} {base.value:.3f} ({base.name})"
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _run(settings: TrainSettings, start: int) -> str:
    planned = settings.hyper.steps
    where = f"resumes at step {start} of {planned}" if start else f"new, {planned} steps"
    return f"{settings.run_dir}: {where}"


def _device(layout: Layout) -> str:
    device, size = jax.local_devices()[0], layout.mesh.size
    reason = (
        f"{os.cpu_count()} cores; JAX found no accelerator"
        if device.platform == "cpu"
        else device.device_kind
    )
    if size == 1:
        return f"{device.platform} ({reason})"
    where = "this process" if layout.processes.alone else f"{layout.processes.count} processes"
    rows = layout.batch_rows // layout.pieces
    return f"{device.platform} ({reason}); {said(layout.axes)}: all of {where}, {rows} rows of a step on each"


def _state(state: TrainState, layout: Layout) -> str:
    """In MB of 10^6 bytes."""
    weights, moments = (bytes_per_device(part) / 1e6 for part in (state.weights, state.optimizer))
    held = f"{weights + moments:.3f} MB on each device: weights {weights:.3f}, optimizer {moments:.3f}"
    cut = sum(not leaf.sharding.is_fully_replicated for leaf in state.weights.values())
    if layout.mesh.size == 1:
        return held
    why = f"{cut} of {len(state.weights)} weights are cut, and what the optimizer keeps for them; of the rest all have copies"
    return f"{held} ({why if cut else 'all have copies'})"


def _model(settings: TrainSettings, weights: Weights) -> str:
    count = sum(math.prod(leaf.shape) for leaf in weights.values())
    dtypes = "/".join(sorted({str(leaf.dtype) for leaf in weights.values()}))
    return f"{settings.preset.name}, {count:,} weights, {dtypes} (as the module declares): {settings.preset.model}"


def _data(settings: TrainSettings, data: Dataset) -> str:
    info = data.info
    why = "--data" if settings.data else "the preset's default, on every machine"
    if info.source and info.name != (here := name_of(info.source)):
        why = f"kept with the run; this image has the {here}"
    return f"{info.name} ({why}): {info.train} to train on, the last {info.validation} to validate; {info.sha256[:12]}"


def _batch(settings: TrainSettings) -> str:
    hyper, task = settings.hyper, settings.preset.task
    per_step = task.positions(hyper.batch_size)
    return (
        f"{hyper.batch_size} rows, {per_step:,} {task.unit} a step, {per_step * hyper.steps:,} in all "
        f"(drawn by seed {hyper.seed} and step, so a resumed run sees what it would have seen)"
    )


def _optimizer(settings: TrainSettings) -> str:
    hyper = settings.hyper
    if settings.preset.optimizer is not None:
        return f"{optimizer_name(settings.preset)}, behind clipping at {hyper.clip_norm:g}"
    return (
        f"adamw, rate to {hyper.learning_rate:g} over {hyper.warmup_steps} steps, "
        f"then cosine to {hyper.learning_rate * hyper.final_lr_fraction:g}; weight decay {hyper.weight_decay:g}"
    )


def _parts(settings: TrainSettings) -> str:
    rows, parts = settings.hyper.batch_size, settings.hyper.accumulate
    if parts == 1:
        return "1 (all rows at once; --set accumulate=K where they do not fit the device)"
    return (
        f"{parts} of {rows // parts} rows, one after the other (--set accumulate: activations of one part in memory at "
        "a time; gradients are added up in float32, then one update)"
    )


def _clipping(settings: TrainSettings) -> str:
    norm = settings.hyper.clip_norm
    if not norm:
        return "none (--set clip_norm=0)"
    return f"gradients to a global norm of {norm:g} (a rare steep batch does not throw the weights off)"


def _precision(settings: TrainSettings) -> str:
    chosen, exact = settings.hyper.compute_dtype, jax.config.jax_default_matmul_precision
    if chosen != FLOAT32:
        return (
            f"{chosen} products, float32 weights, gradients' sums, optimizer and loss (--set compute_dtype; it has the range "
            "of float32, so no loss is scaled)"
        )
    how = (
        ""
        if jax.local_devices()[0].platform == "cpu"
        else f"; products as jax_default_matmul_precision={exact} says"
    )
    return f"{FLOAT32}{how} (the default; --set compute_dtype=bfloat16 is faster where a device has units for it)"


def _memory(settings: TrainSettings) -> str:
    if settings.upkeep.remat:
        return (
            "blocks recomputed in the backward pass (--set remat=true: less memory for a third more products)"
        )
    return "activations kept for the backward pass (the faster; --set remat=true where they do not fit the device)"


def _no_number(settings: TrainSettings) -> str:
    allowed = settings.upkeep.skip_nonfinite
    if not allowed:
        return "a loss or gradient that is not finite stops the run, exit 3 (no update, and nothing after it is saved)"
    steps, are = ("step", "is") if allowed == 1 else ("steps", "are")
    return f"up to {allowed} {steps} in a row with a loss or gradient that is not finite {are} passed over (--skip-nonfinite)"


def _saves(settings: TrainSettings) -> str:
    upkeep = settings.upkeep
    forever = f" and those at multiples of {upkeep.keep_every} steps" if upkeep.keep_every else ""
    return (
        f"every {upkeep.checkpoint_every} steps, in the background; "
        f"the latest {upkeep.keep_latest}, the best {upkeep.keep_best}{forever} stay"
    )
