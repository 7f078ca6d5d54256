"""The comparison of one model: every server at its best setting, in rounds that alternate between all of them."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.peers import candidates
from benchmarks.peers.candidates import CANDIDATES, Candidate, Setting, Started
from benchmarks.peers.ceiling import Ceiling
from benchmarks.peers.programs import Served
from benchmarks.peers.sweep import Sweep, Trial, best, shown
from benchmarks.peers.venvs import Venv
from benchmarks.peers.windows import FAULTS, await_ready, measure, reason

# A window is as long as is asked for, or as it takes to do four times what is in flight, up to this.
LONGEST_SECONDS = 20.0
SWEEP_SECONDS = 1.0
RATE_SECONDS = 0.3


@dataclass(frozen=True)
class Plan:
    """seconds: of a window, at least. root: for logs, venvs and results."""

    concurrency: Sequence[int]
    rounds: int
    seconds: float
    root: Path


class Comparison:
    """venvs: of every candidate that takes part; None for one that needs none. sweep: None takes first settings."""

    def __init__(
        self,
        model: Served,
        venvs: Mapping[str, Venv | None],
        plan: Plan,
        sweep: Sweep | None,
        console: Console,
    ) -> None:
        self._model, self._venvs, self._plan, self._sweep, self._console = model, venvs, plan, sweep, console
        self._candidates = [c for c in CANDIDATES if c.name in venvs]

    def run(self, *, sweep_only: bool = False) -> dict[str, Any]:
        """{concurrency: {"seconds", "ceiling": [...], "servers": {name: {...}}}}; plain values, for JSON.

        sweep_only: no rounds; a later run takes the settings that were found.
        """
        log = self._plan.root / "logs" / f"ceiling-{self._model.name}.log"
        with Ceiling(self._model, log) as ceiling:
            rates = {c: ceiling.measure(c, RATE_SECONDS).rows_per_s for c in self._plan.concurrency}
            cells = self._cells(rates)
            if not sweep_only:
                with self._servers(cells) as servers:
                    for concurrency, cell in cells.items():
                        for number in range(self._plan.rounds):
                            self._round(concurrency, number, cell, ceiling, servers)
        return {str(concurrency): cell for concurrency, cell in cells.items()}

    def _cells(self, rates: Mapping[int, float]) -> dict[int, dict[str, Any]]:
        """What is to be measured, with the best settings; no window yet."""
        slots = {
            c: c / rate for c, rate in rates.items()
        }  # seconds in which everything in flight is done once
        short = {c: max(SWEEP_SECONDS, min(2 * slot, LONGEST_SECONDS / 2)) for c, slot in slots.items()}
        cells = {
            c: {
                "seconds": max(self._plan.seconds, min(4 * slot, LONGEST_SECONDS)),
                "ceiling": [],
                "servers": {},
            }
            for c, slot in slots.items()
        }
        for candidate in self._candidates:
            trials = self._trials(candidate, short)
            for c, cell in cells.items():
                cell["servers"][candidate.name] = {
                    "setting": dict(best(trials[c]) if trials else candidate.settings[0]),
                    "sweep": [asdict(trial) for trial in trials.get(c, [])],
                    "wire": candidate.wire.title,
                    "windows": [],
                    "failed": None,
                }
        return cells

    def _trials(self, candidate: Candidate, seconds: Mapping[int, float]) -> dict[int, list[Trial]]:
        if self._sweep is None or len(candidate.settings) == 1:
            return {}
        return self._sweep.trials(candidate, self._model, self._venvs[candidate.name], seconds)

    @contextlib.contextmanager
    def _servers(self, cells: Mapping[int, dict[str, Any]]) -> Iterator[dict[tuple[str, str], Started]]:
        """(candidate, setting) -> the server; one that does not start is marked as failed where it was wanted."""
        running: dict[tuple[str, str], Started] = {}
        try:
            for candidate, setting in self._wanted(cells):
                venv = self._venvs[candidate.name]
                started = candidates.start(
                    candidate, setting, self._model, venv and venv.python, self._plan.root
                )
                running[candidate.name, shown(setting)] = started
                if candidate.ours:  # it measures its buckets as it starts: nobody else may start beside it
                    self._await(started, running, cells)
            for started in [*running.values()]:
                if not started.candidate.ours:
                    self._await(started, running, cells)
            yield running
        finally:
            for started in running.values():
                started.stop()

    def _wanted(self, cells: Mapping[int, dict[str, Any]]) -> list[tuple[Candidate, Setting]]:
        """Every server to start, once."""
        found = {
            (candidate.name, shown(setting)): (candidate, setting)
            for candidate in self._candidates
            for setting in (cell["servers"][candidate.name]["setting"] for cell in cells.values())
        }
        return list(found.values())

    def _await(
        self, started: Started, running: dict[tuple[str, str], Started], cells: Mapping[int, dict[str, Any]]
    ) -> None:
        try:
            await_ready(started, self._model)
        except FAULTS as fault:
            key = started.candidate.name, shown(started.setting)
            self._fail(key, fault, cells.values())
            running.pop(key).stop()
        else:
            started.server.settle()
            started.server.pause()

    def _fail(self, key: tuple[str, str], fault: BaseException, cells: Iterable[dict[str, Any]]) -> None:
        name, setting = key
        self._console.print(f"  {name} {setting}: {reason(fault)}", markup=False)
        for cell in cells:
            if shown(cell["servers"][name]["setting"]) == setting:
                cell["servers"][name]["failed"] = reason(fault)

    def _round(
        self,
        concurrency: int,
        number: int,
        cell: dict[str, Any],
        ceiling: Ceiling,
        servers: Mapping[tuple[str, str], Started],
    ) -> None:
        """The ceiling and then each server once, in turn."""
        alone = ceiling.measure(concurrency, cell["seconds"])
        cell["ceiling"].append(asdict(alone))
        rates = [f"in process {alone.rows_per_s:,.0f}"]
        for name, entry in cell["servers"].items():
            key = name, shown(entry["setting"])
            if entry["failed"]:
                continue
            resting = [other for at, other in servers.items() if at != key]
            servers[key].server.resume()
            try:
                window = measure(servers[key], self._model, concurrency, cell["seconds"], resting)
            except FAULTS as fault:
                self._fail(key, fault, [cell])
            else:
                entry["windows"].append(asdict(window))
                awake = ", ".join(f"{other} took {cores:.2f} cores" for other, cores in window.others.items())
                rates.append(f"{name} {window.requests_per_s:,.0f}{f' (while {awake})' if awake else ''}")
            finally:
                servers[key].server.pause()
        title = f"{self._model.name}, {concurrency} in flight, round {number + 1}: "
        self._console.print(title + ", ".join(rates), markup=False, highlight=False)
