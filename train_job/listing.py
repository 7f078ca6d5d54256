"""What can be said of the runs below a root without their models: from their records, rows and names. Imports no JAX."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_job.errors import TrainError, UsageError
from train_job.rows import MetricsFile, read_metrics_file
from train_job.runs import METRICS, RECORD, RunRecord, is_written, read_run, saved_steps

FINISHED, RUNNING, STOPPED, UNREADABLE = "finished", "running", "stopped", "unreadable"
_ABOUT_THE_ROW = ("step", "time")


@dataclass(frozen=True)
class Run:
    """One run, as far as its files say.

    state: finished; running (a process holds its lock, as far as this machine's view of the volume shows); stopped; or
    unreadable, with `why` and nothing else. why: what of the run cannot be read, in a line. step: steps that are known to be done: the last row's, or the last save's.
    headline: the metric that sums it up, with the name. rows: what was measured. size: bytes on disk. updated: when the
    last row was written, in seconds since 1970; None before the first.
    """

    name: str
    state: str
    why: str = ""
    record: RunRecord | None = None
    rows: Sequence[Mapping[str, Any]] = ()
    step: int = 0
    steps: int = 0
    size: int = 0
    updated: float | None = None
    headline: str = ""
    last: Mapping[str, Any] = field(default_factory=dict)

    @property
    def preset(self) -> str:
        """As `--preset` or `--model` took it."""
        return "" if self.record is None else self.record.preset

    @property
    def speed(self) -> tuple[str, float] | None:
        """("tokens", 12000.0): of the last interval; None before the first."""
        for name, value in self.last.items():
            if name.endswith("_per_s") and number(value) is not None:
                return name.removesuffix("_per_s"), float(value)
        return None

    def figures(self) -> dict[str, float | None]:
        """Those of the last row that are numbers; None for one that is not finite."""
        return {name: number(value) for name, value in self.last.items() if name not in _ABOUT_THE_ROW}

    def as_json(self) -> dict[str, Any]:
        """For programs: what `jaxport runs --json` prints of it."""
        record = self.record
        known = {"run": self.name, "state": self.state}
        if record is None:
            return {**known, "why": self.why}
        return {
            **known,
            "preset": record.preset,
            "step": self.step,
            "steps": self.steps,
            "headline": self.headline,
            "starts": record.starts,
            "created_at": record.created_at,
            "updated": self.updated,
            "bytes": self.size,
            "data": _plain(record.data),
            "settings": _plain(record.settings),
            "baselines": _plain(record.baselines),
            "figures": self.figures(),
            **({"why": self.why} if self.why else {}),
        }


def all_runs(root: Path) -> list[Run]:
    """Every run below `<root>/runs`, the one that was last written first, those that cannot be read last.

    Raises:
        UsageError: `root` is no folder.
    """
    if not root.is_dir():
        raise UsageError(f"--root: found {str(root)!r}, needs the folder that holds runs/, as ./work")
    folders = sorted(path.parent for path in (root / "runs").glob(f"*/{RECORD}"))
    return sorted(map(read, folders), key=_order)


def _order(run: Run) -> tuple[bool, float]:
    """One that has no row yet was begun a moment ago."""
    return run.record is None, -math.inf if run.updated is None else -run.updated


def some_runs(root: Path, names: Iterable[str]) -> list[Run]:
    """Those of these names, in their order. Raises UsageError where there is none, EnvironmentUnfit as `read_run`."""
    found = []
    for name in names:
        if not name or Path(name).name != name:
            raise UsageError(f"{name!r} is no name of a run; present: {_present(root)}")
        read_run(root / "runs" / name)
        found.append(read(root / "runs" / name))
    return found


def read(run_dir: Path) -> Run:
    """What one folder says. Whatever is damaged there is said in it, and raises nothing."""
    try:
        record = read_run(run_dir)
    except TrainError as error:
        return Run(run_dir.name, UNREADABLE, why=str(error))
    rows: list[dict[str, Any]] = []
    saved: list[int] = []
    try:
        metrics = read_metrics_file(run_dir)
        rows, why = metrics.rows, _damage(run_dir / METRICS, metrics, record.finished)
        if record.finished and not metrics.content:
            why = f"{run_dir / METRICS}: is missing or empty, so that nothing is known of what was measured"
    except TrainError as error:
        why = str(error)
    with suppress(OSError):
        saved = saved_steps(run_dir)
    last = rows[-1] if rows else {}
    steps = record.settings.get("steps")
    state = FINISHED if record.finished else RUNNING if is_written(run_dir) else STOPPED
    return Run(
        name=run_dir.name,
        state=state,
        why=why,
        record=record,
        rows=rows,
        step=max([last.get("step", 0), *saved]),
        steps=steps if isinstance(steps, int) else 0,
        size=_bytes(run_dir),
        updated=number(last.get("time")),
        headline=_headline(record, last),
        last=last,
    )


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Settings, model and data that are not the same in all of the runs, by name: a value for each, None where it has none."""
    each = [_settings(run) for run in runs]
    names = sorted({name for settings in each for name in settings})
    values = {name: [settings.get(name) for settings in each] for name in names}
    return {name: of for name, of in values.items() if any(value != of[0] for value in of)}


def common_step(runs: Sequence[Run]) -> int | None:
    """The last step that all of the runs have a row of; None where there is none."""
    steps = [{row["step"] for row in run.rows} for run in runs]
    return max(set.intersection(*steps), default=None) if steps else None


def figures_at(runs: Sequence[Run], step: int) -> dict[str, list[float | None]]:
    """What was measured at a step that all have, by name: a number for each run, None where it has none."""
    rows = [next(row for row in run.rows if row["step"] == step) for run in runs]
    names = dict.fromkeys(name for row in rows for name in row if name not in _ABOUT_THE_ROW)
    return {name: [number(row.get(name)) for row in rows] for name in names}


def curve(run: Run, name: str) -> list[tuple[int, float]]:
    """(step, value) of every row that has a finite one."""
    found = ((row["step"], number(row.get(name))) for row in run.rows)
    return [(step, value) for step, value in found if value is not None]


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number that no float holds
        return None


def _plain(value: Any) -> Any:
    """Without the numbers that JSON has not, which Python writes and reads all the same."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _damage(path: Path, metrics: MetricsFile, finished: bool) -> str:
    """Empty where nothing is damaged; a row that is not whole yet is damage only where none is written any more."""
    damaged = metrics.damaged + (metrics.torn and finished)
    lines = damaged + len(metrics.rows)
    return f"{path}: {damaged} of {lines} lines damaged and left out" if damaged else ""


def _headline(record: RunRecord, last: Mapping[str, Any]) -> str:
    """As the record has it; of one from before it was kept, what there is a baseline for."""
    for name in (record.headline, *record.baselines):
        if name and name in last:
            return name
    return "val_loss"


def _settings(run: Run) -> dict[str, Any]:
    record = run.record
    if record is None:
        return {}
    versions = {f"version of {name}": value for name, value in record.versions.items()}
    fingerprint = {name: value for name, value in record.fingerprint.items() if name != "data.sha256"}
    data = {"data": record.data.get("name"), "data.sha256": str(record.data.get("sha256"))[:12]}
    return {"preset": record.preset, **fingerprint, **record.settings, **data, **versions}


def _bytes(folder: Path) -> int:
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # retention removes checkpoints as this looks
                total += (Path(where) / name).lstat().st_size
    return total


def _present(root: Path) -> str:
    return ", ".join(sorted(path.parent.name for path in (root / "runs").glob(f"*/{RECORD}"))) or "none"
