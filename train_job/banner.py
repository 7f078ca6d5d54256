"""What a run says before its first step: each choice with its reason."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import jax

from train_job.data.sources import name_of
from train_job.mesh import Layout
from train_job.presets import Dataset
from train_job.settings import TrainSettings


def banner(
    settings: TrainSettings,
    data: Dataset,
    layout: Layout,
    abstract: Mapping[str, jax.ShapeDtypeStruct],
    start: int,
) -> str:
    """Several lines of "name  choice (reason)"."""
    lines = {
        "run": _run(settings, start),
        "device": _device(layout),
        "model": _model(settings, abstract),
        "data": _data(settings, data),
        "batch": _batch(settings),
        "optimizer": _optimizer(settings),
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
    return f"{device.platform} ({reason}); data={size}: all of {where}, {layout.batch_rows // size} rows of a step on each"


def _model(settings: TrainSettings, abstract: Mapping[str, jax.ShapeDtypeStruct]) -> str:
    count = sum(math.prod(leaf.shape) for leaf in abstract.values())
    dtypes = "/".join(sorted({str(leaf.dtype) for leaf in abstract.values()}))
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
    return (
        f"adamw, rate to {hyper.learning_rate:g} over {hyper.warmup_steps} steps, "
        f"then cosine to {hyper.learning_rate * hyper.final_lr_fraction:g}; weight decay {hyper.weight_decay:g}"
    )


def _saves(settings: TrainSettings) -> str:
    upkeep = settings.upkeep
    forever = f" and every {upkeep.keep_every}th step" if upkeep.keep_every else ""
    return (
        f"every {upkeep.checkpoint_every} steps, in the background; "
        f"the latest {upkeep.keep_latest}, the best {upkeep.keep_best}{forever} stay"
    )
