"""What must be equal for a run to be resumed: model, data, seed, batch size, optimizer, schedule."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from train_job.errors import FingerprintMismatch
from train_job.presets import Preset
from train_job.settings import Hyperparameters

DATA = "data.sha256"
# Fields that came later, with what runs of before did. Left out of a fingerprint where they say the same, so that it
# stays what it was.
_LATER = {"compute_dtype": "float32", "accumulate": 1}


def fingerprint(preset: Preset, data_sha256: str, hyper: Hyperparameters) -> dict[str, Any]:
    """Flat, plain values under the names a person would use to change them ("model.layers", "seed", ...)."""
    model = {f"model.{name}": value for name, value in preset.model_description().items()}
    settings = {name: value for name, value in dataclasses.asdict(hyper).items() if _LATER.get(name) != value}
    whole = {**model, DATA: data_sha256, "optimizer": optimizer_name(preset), **settings}
    return json.loads(json.dumps(whole))  # as it will be read back: tuples become lists


def optimizer_name(preset: Preset) -> str:
    """ "adamw", or "module:function" of what a preset has in its place."""
    own: Any = preset.optimizer
    return "adamw" if own is None else f"{own.__module__}:{own.__qualname__}"


def require_same(run: str, recorded: Mapping[str, Any], asked: Mapping[str, Any], data_name: str) -> None:
    """Raises FingerprintMismatch naming the first field that differs between the run and the request."""
    for field in sorted(recorded.keys() | asked.keys()):
        was, now = (side.get(field, _LATER.get(field)) for side in (recorded, asked))
        if was != now:
            raise FingerprintMismatch(
                f"run {run!r}: {field} was {_brief(was)} when the run began, asked for now is {_brief(now)}; "
                f"{_cure(field, was, data_name)}, choose another --run, or start over with --no-resume"
            )


def _cure(field: str, was: Any, data_name: str) -> str:
    if field == "steps":
        return f"pass --steps {was}"
    if field == DATA:
        return f"pass the --data the run began with (now {data_name!r})"
    if field.startswith("model.") or field == "optimizer":
        return f"go back to the {field.partition('.')[0]} the run began with"
    return f"pass --set {field}={was}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:12]}...{text[-6:]}"
