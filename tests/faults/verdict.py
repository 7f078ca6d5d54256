"""What must be so after each strike, and at the end of a run, of which there is one that was left alone."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.starts import Strike
from tests.faults.struck import EVERY, toy
from train_job import checkpoints
from train_job.checkpoints import list_steps
from train_job.mesh import lay_out
from train_job.optimizer import optimizer
from train_job.processes import ALONE
from train_job.rows import read_metrics
from train_job.runs import read_run
from train_job.state import abstract_state

SIGTERM_UNHEARD = -signal.SIGTERM


class Verdict:
    """Compares with the run in `alone`, which kept every checkpoint of its planned saves."""

    def __init__(self, alone: Path, processes: int, steps: int) -> None:
        self.faults: list[str] = []
        self._processes, self._steps = processes, steps
        preset = toy()
        layout = lay_out({}, preset.hyper.batch_size, ALONE)
        self._abstract: Any = abstract_state(preset.model, optimizer(preset.hyper), layout).as_items()
        self._digests: dict[int, str] = {}
        self._read = self._progressed = self._unheard = 0
        self._check_checkpoints(alone)
        self._losses = _losses(alone)
        self._planned = set(self._digests)
        self.require(self._planned == set(range(EVERY, steps + 1, EVERY)), "undisturbed: steps are missing")

    def require(self, so: bool, what: str) -> None:
        if not so:
            self.faults.append(what)

    def judge(self, root: Path, strike: Strike, before: int) -> None:
        """before: the last step that was whole when this start began."""
        where = f"{root.name}, {strike}"
        self._check_codes(root, strike, where)
        for text in strike.said:
            self.require("Traceback" not in text, f"{where}: a traceback:\n{text}")
        resumed = strike.states[0]["resumed"]
        self.require(resumed in (None, before), f"{where}: went on from {resumed}, {before} was there")
        # What was seen whole stays so, and is more than there was.
        whole = max(state["saved"] for state in strike.states)
        self.require(strike.saved >= max(before, whole), f"{where}: {before} and {whole} were whole")
        if resumed is not None and whole >= resumed + EVERY - resumed % EVERY:
            self._progressed += 1
            self.require(strike.saved > before, f"{where}: no progress")
        self._check_checkpoints(root)
        self._check_metrics(root, where)

    def _check_codes(self, root: Path, strike: Strike, where: str) -> None:
        done = {0} if finished(root) else set()
        for index, code in enumerate(strike.codes):
            if index not in strike.whom:
                allowed = {75} | done
            elif strike.number == signal.SIGKILL:
                allowed = {-9, 137}
            elif not strike.heard:
                allowed = {SIGTERM_UNHEARD}
                self._unheard += 1
            else:
                allowed = {75} | done
            self.require(
                code in allowed,
                f"{where}: exit {code} of process {index}, not {sorted(allowed)}:\n{strike.said[index]}",
            )
        steps = {
            line.split()[3]
            for text in strike.said
            for line in text.splitlines()
            if line.startswith("preempted: saved")
        }
        self.require(len(steps) <= 1, f"{where}: saved {steps}")
        self.require(not steps or steps == {str(strike.saved)}, f"{where}: saved {steps}")

    def judge_end(self, root: Path) -> None:
        self._check_checkpoints(root)
        self._check_metrics(root, root.name)
        self.require(finished(root), f"{root.name}: not marked finished")
        run_dir = root / "runs" / "toy"
        self.require(list_steps(run_dir)[-1].step == self._steps, f"{root.name}: the last step is missing")
        self.require(_losses(root) == self._losses, f"{root.name}: other metrics than the run left alone")
        left = [
            str(path) for path in run_dir.rglob("*") if "tmp" in path.name or path.name.endswith(".partial")
        ]
        self.require(not left, f"{root.name}: left over: {left}")

    def _check_checkpoints(self, root: Path) -> None:
        """All items of all that are listed, bit for bit: those of the planned steps as the run left alone has them."""
        run_dir = root / "runs" / "toy"
        for info in list_steps(run_dir):
            try:
                found = self._digest(run_dir, info.step)
            except Exception as error:  # whatever it is, it is a checkpoint that cannot be read
                self.faults.append(f"{root.name}: checkpoint {info.step} cannot be read: {error!r}")
                continue
            self._read += 1
            known = self._digests.setdefault(info.step, found)
            self.require(
                found == known, f"{root.name}: checkpoint {info.step} is another than it was elsewhere"
            )

    def _digest(self, run_dir: Path, step: int) -> str:
        items = checkpoints._load(run_dir.absolute() / "checkpoints" / str(step), self._abstract)
        content = hashlib.sha256()
        for item, leaves in sorted(items.items()):
            for name, leaf in sorted(leaves.items()):
                content.update(
                    f"{item} {name} {leaf.dtype}{leaf.shape}".encode() + np.asarray(leaf).tobytes()
                )
        return content.hexdigest()

    def _check_metrics(self, root: Path, where: str) -> None:
        found = _losses(root)
        self.require(list(found) == sorted(found), f"{where}: metrics are out of order")
        self.require(found.items() <= self._losses.items(), f"{where}: other metrics than the run left alone")

    def summary(self) -> str:
        """What was looked at, in a line or two."""
        unheard = (
            f"; {self._unheard} SIGTERM came before Python could hear it (exit -15)" if self._unheard else ""
        )
        return (
            f"    {self._read} checkpoints read whole, those of planned steps bit for bit those of the run left alone; {self._progressed} starts "
            f"lived past their first planned save{unheard}; {len(self.faults)} faults"
        )


def finished(root: Path) -> bool:
    run_dir = root / "runs" / "toy"
    return (run_dir / "run.json").exists() and read_run(run_dir).finished


def _losses(root: Path) -> Mapping[int, str]:
    """By step what was measured of the weights, as it is written."""
    rows = read_metrics(root / "runs" / "toy")
    return {
        row["step"]: json.dumps([row[name] for name in sorted(row) if name.startswith(("train_", "val_"))])
        for row in rows
    }
