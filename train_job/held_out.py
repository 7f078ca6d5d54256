"""What a run's model answers on the part of its data that it never saw, with these weights or those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from train_job.fingerprint import DATA
from train_job.kept import KeptData
from train_job.presets import Dataset, Task, preset_of_run
from train_job.runs import KEPT_DATA, RunRecord
from train_job.steps import mean_metrics
from train_job.weights import skeleton


def held_out(
    run_dir: Path, record: RunRecord, several: Sequence[Mapping[str, Any]]
) -> tuple[str, list[dict[str, float]]] | None:
    """(the metric that a run is summed up by, metrics by name for each of `several` weights, by flat key).

    The validation part is that of the run's own data: None where those bytes are not to be had from here, as of files
    that a person named.
    """
    preset = preset_of_run(record.preset, record.data)
    data = _data(run_dir, record, preset.task)
    if data is None:
        return None
    evaluate = jax.jit(mean_metrics(preset.task, skeleton(preset.model)))
    batches = data.evaluation("validation")
    found = []
    for weights in several:
        means = {f"val_{name}": float(value) for name, value in evaluate(dict(weights), batches).items()}
        found.append({name: float(value) for name, value in preset.task.report(means).items()})
    return preset.task.headline, found


def _data(run_dir: Path, record: RunRecord, task: Task) -> Dataset | None:
    wanted, source = str(record.fingerprint.get(DATA)), record.data.get("source")
    corpus = None
    if source:
        corpus = KeptData(run_dir / KEPT_DATA, source, str(record.data.get("name")), wanted).read()
        if corpus is None:
            return None
    data = task.load(None, corpus)
    return data if data.info.sha256 == wanted else None
