"""What a process with eight devices finds of a run on two meshes, and what one device gives.

python -m tests.train_job.on_eight_devices FOLDER writes FOLDER/facts.json, FOLDER/weights.npz and a run, FOLDER/runs/moved.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from train_job.checkpoints import Checkpoints
from train_job.job import train
from train_job.mesh import Layout
from train_job.optimizer import optimizer
from train_job.outcomes import Outcomes
from train_job.partition import PartitionRules
from train_job.prefetch import Prefetch
from train_job.processes import ALONE
from train_job.settings import AXES, TrainSettings, Upkeep
from train_job.state import abstract_state, fresh_state, shardings
from train_job.steps import Outcome, compile_programs

HERE = Path(__file__).parent
PRESET = "toy_model:wide"
DATA = str(
    HERE.parents[1] / "LICENSE"
)  # text that stays as it is: which rows there are decides how far rounding leads
# A run that is stopped after so many steps on one mesh and goes on, to be stopped once more, on the other.
MOVES = {"data=2,fsdp=2,tensor=2": 5, "fsdp=8": 9}
LOOKS = (4, 8)  # where it evaluates


def settings(root: Path, **flags: Any) -> TrainSettings:
    return TrainSettings.from_flags(root=root, **{"model": PRESET, "data": DATA, **flags})


class OneDevice:
    """The run's steps in a loop of this module's, on the first of the devices."""

    def __init__(self, root: Path) -> None:
        self.settings = settings(root)
        self.preset, self.hyper = self.settings.preset, self.settings.hyper
        self.data, self.transform = self.preset.task.load(DATA), optimizer(self.hyper)
        self.rules = PartitionRules.of(self.preset.model)
        first = np.array(jax.devices()[:1]).reshape(1, 1, 1)
        mesh = Mesh(first, AXES, axis_types=(AxisType.Auto,) * len(AXES))
        self.one = Layout(mesh, ALONE, self.hyper.batch_size, self.rules)
        self.start = jax.device_get(
            fresh_state(self.preset.model, self.transform, self.hyper.seed, self.abstract(self.one))
        )

    def abstract(self, layout: Layout) -> Any:
        return abstract_state(self.preset.model, self.transform, layout)

    def run(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Evaluated as a run is, and with the weights at each step that a run is compared at."""
        state = jax.device_put(self.start, shardings(self.abstract(self.one)))
        evaluation = self.one.evaluation(self.data.evaluation("validation"))
        losses, looks, weights = {}, {}, {}
        batches: dict[int, str] = {}
        batch = self.one.batch(self.data, self.hyper.seed, 0)
        programs = compile_programs(self.preset, self.hyper, Upkeep(), self.one, state, batch, evaluation)
        for done in range(1, max(MOVES.values()) + 1):
            batch = self.one.batch(self.data, self.hyper.seed, done - 1)
            batches[done - 1] = digest(batch)
            state, outcome = programs.step(state, batch)
            losses[done] = float(outcome.loss)
            if done in LOOKS:
                looks[done] = float(programs.evaluate(state.weights, evaluation)["loss"])
            if done in MOVES.values():
                weights |= {f"one/{done}/{name}": np.asarray(w) for name, w in state.weights.items()}
        return {"losses": losses, "looks": looks, "batches": batches}, weights


@contextlib.contextmanager
def recorded() -> Iterator[dict[str, Any]]:
    """While within: by step the digest of the batch that was trained on and its loss, and what the devices hold at the
    last save."""
    seen: dict[str, Any] = {"batches": {}, "losses": {}}
    take, save, add = Prefetch.take, Checkpoints.save, Outcomes.add

    def taking(self: Prefetch, step: int) -> Mapping[str, Any]:
        batch = take(self, step)
        seen["batches"][step] = digest(batch)
        return batch

    def saving(self: Checkpoints, step: int, items: Any, metrics: Mapping[str, float]) -> None:
        seen.update(held(items))
        save(self, step, items, metrics)

    def adding(self: Outcomes, done: int, outcome: Outcome) -> None:
        add(self, done, outcome)
        seen["losses"][done] = float(outcome.loss)

    Prefetch.take, Checkpoints.save, Outcomes.add = taking, saving, adding
    try:
        yield seen
    finally:
        Prefetch.take, Checkpoints.save, Outcomes.add = take, save, add


def digest(batch: Mapping[str, Any]) -> str:
    content = b"".join(np.asarray(batch[name]).tobytes() for name in sorted(batch))
    return hashlib.sha256(content).hexdigest()


def held(items: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, Any]:
    """bytes: what each device has of the weights and of the optimizer's state. parts: the shapes of what it has."""
    found, parts = {}, {}
    for item in ("params", "optimizer"):
        for name, leaf in items[item].items():
            parts[f"{item} {name}"] = leaf.addressable_shards[0].data.shape
            for part in leaf.addressable_shards:
                key = f"{item} {part.device.id}"
                found[key] = found.get(key, 0) + part.data.nbytes
    return {"bytes": found, "parts": parts}


def moved(root: Path, mesh: str, stop: int) -> dict[str, Any]:
    os.environ["STOP_AT"] = str(stop - 1)
    with recorded() as seen, contextlib.redirect_stdout(io.StringIO()) as said:
        code = train(settings(root, run="moved", mesh=mesh))
    return {"code": code, "said": said.getvalue(), **seen}


def main(root: Path) -> None:
    sys.path.insert(0, str(HERE))
    facts: dict[str, Any] = {}
    facts["one"], weights = OneDevice(root).run()
    for mesh, stop in MOVES.items():
        facts[mesh] = moved(root, mesh, stop)
    np.savez(root / "weights.npz", **weights)
    (root / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
