"""Versions come and go under load, and nobody notices: python -m benchmarks.updates [--weights 20 --programs 3]

Clients ask by default and by the label `stable` while that label moves: to versions with other weights, to versions
with another program, back, and (as `canary`) to versions that must not load. Every answer is compared with the one
right output of the version that gave it, bit for bit. Exit code 3 when a line of the report is broken.
"""

import argparse
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.checked_load import Answers, asking
from benchmarks.update_models import (
    MODEL,
    cut,
    export_version,
    flip,
    lose,
    only_cuda,
    publish,
    questions,
    wrong_goldens,
)
from converters.promote import promote, rollback, set_policy
from jaxport.scrape import scrape
from jaxport.tour import served

WEIGHTS, PROGRAM, ROLLBACK, FAILED = "weights", "program", "rollback", "failed load"
MOST_RATIO = 1.5  # of the p99 while versions change to the p99 before
BAD = 1000  # the first of the versions that must not load
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Counts:
    """How much of what. quiet: seconds of load before each change, which is what it is compared with."""

    weights: int = 20
    programs: int = 3
    failed: int = 5
    clients: int = 32
    processes: int = 2
    quiet: float = 1.0

    @property
    def swaps(self) -> list[str]:
        """The swaps in order: program swaps spread among the others, a roll-back after the last two of weights."""
        kinds = [WEIGHTS] * self.weights
        for n in range(self.programs):
            kinds.insert((n + 1) * self.weights // (self.programs + 1) + n, PROGRAM)
        return [*kinds, ROLLBACK]


@dataclass(frozen=True)
class Change:
    """start, end: time.monotonic() from the first byte read of a version to the end of the one before.

    version: the one that answers from then on. compiled: whether the compiler ran.
    """

    kind: str
    start: float
    end: float
    version: int
    compiled: bool


@dataclass
class Report:
    """What was seen: all changes, all answers, and requests that had to compile."""

    changes: list[Change] = field(default_factory=list)
    answers: Answers = field(default_factory=Answers)
    request_compiles: float = 0.0

    @property
    def compiles(self) -> int:
        """Changes of weights alone, and roll-backs to such, that compiled."""
        return sum(c.compiled for c in self.changes if c.kind in (WEIGHTS, ROLLBACK))

    @property
    def stale(self) -> int:
        """Answers of a version that was not in use at any time between question and answer."""
        sent, received, versions = self._arrays()
        good = np.zeros(len(sent), bool)
        swaps = [change for change in self.changes if change.kind != FAILED]
        for at, change in enumerate(swaps):
            until = swaps[at + 1].end if at + 1 < len(swaps) else float("inf")
            good |= (versions == change.version) & (received >= change.start) & (sent <= until)
        return int((~good).sum())

    def p99_ms(self, changes: Sequence[Change], quiet: float = 0.0) -> float:
        """p99 of requests that touch one of the changes; with `quiet`, of those within so many seconds before one."""
        sent, received, _ = self._arrays()
        chosen = np.zeros(len(sent), bool)
        for change in changes:
            if quiet:
                chosen |= (sent >= change.start - quiet) & (received < change.start)
            else:
                chosen |= (received >= change.start) & (sent <= change.end)
        return float(np.percentile((received - sent)[chosen], 99) * 1e3) if chosen.any() else float("nan")

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        answers = self.answers
        return np.array(answers.sent), np.array(answers.received), np.array(answers.versions)


def run(root: Path, counts: Counts) -> Report:
    """Exports the versions below `root`, serves them, and changes them under load."""
    programs = versions_of(counts.swaps)
    made = root / "made"
    for number, program in programs.items():
        export_version(made, number, program)
    stage = Stage(root / "models" / MODEL, made / MODEL, root / "serve.log")
    publish(stage.made / "1", stage.model / "1")
    promote(stage.model, 1, "stable")
    set_policy(stage.model, "label stable")
    report = Report()
    with served(root, "--poll-seconds", "0.1") as (address, http):
        report.changes.append(Change("start", 0.0, 0.0, 1, True))
        asked = questions(programs, ("", "stable"))
        with asking(address, asked, counts.clients, counts.processes) as answers:
            time.sleep(counts.quiet)
            for step in steps(stage, counts):
                time.sleep(counts.quiet)
                report.changes.append(step())
            time.sleep(counts.quiet)
        report.answers = answers
        found = scrape(http)
        report.request_compiles = (found and found.total("jaxport_compiles_after_ready_total")) or 0.0
    return report


def versions_of(swaps: Sequence[str]) -> dict[int, int]:
    """version -> its program, for version 1 and one more for each swap that is no roll-back."""
    programs = {1: 0}
    for kind in swaps:
        if kind != ROLLBACK:
            last = len(programs)
            programs[last + 1] = programs[last] + (kind == PROGRAM)
    return programs


def steps(stage: "Stage", counts: Counts) -> list[Callable[[], Change]]:
    """Every change in order, failed loads spread among the swaps."""
    made: list[Callable[[], Change]] = []
    number = 1
    for kind in counts.swaps:
        if kind != ROLLBACK:
            number += 1
        made.append(lambda kind=kind, number=number: stage.swap(kind, number))
    damages = [cut, flip, lose, only_cuda, wrong_goldens(stage.made / "2"), None]
    for n in range(counts.failed):
        damage = damages[n % len(damages)]
        at = (n + 1) * len(made) // (counts.failed + 1)
        made.insert(at, lambda n=n, damage=damage: stage.fail(BAD + n, damage))
    return made


@dataclass
class Stage:
    """The model's folder under the server, versions to copy from, and the server's log."""

    model: Path
    made: Path
    log: Path
    current: int = 1

    def swap(self, kind: str, number: int) -> Change:
        """Moves the label `stable`, and waits until the version before has gone."""
        read = self._end_of_log()
        if kind == ROLLBACK:
            number = rollback(self.model, "stable")[1]
        else:
            publish(self.made / str(number), self.model / str(number))
            promote(self.model, number, "stable")
        seconds = float(self._wait(rf"serving model={MODEL} version={number} seconds=(\S+)", read)[1])
        start = time.monotonic() - seconds - 0.02
        self._wait(rf"unloaded model={MODEL} version={self.current}\b", read)
        loaded = self._wait(rf" loaded model={MODEL} version={number} .*compiled=(\w+)", read)
        self.current = number
        return Change(kind, start, time.monotonic(), number, loaded[1] == "True")

    def fail(self, number: int, damage: Callable[[Path], None] | None) -> Change:
        """A canary that must not load; without a damage it vanishes while it is loaded."""
        read, folder, label = self._end_of_log(), self.model / str(number), self.model / "labels" / "canary"
        start = time.monotonic()
        if damage is None:
            for tenth in range(8):
                publish(self.made / "1", folder)
                label.write_text(f"{number}\n")
                time.sleep(0.1 + 0.01 * tenth)
                shutil.rmtree(folder)
                label.unlink()
        else:
            publish(self.made / "1", folder, damage)
            label.write_text(f"{number}\n")
            self._wait(rf"refused model={MODEL} version={number}: ", read)
            label.unlink()
            shutil.rmtree(folder)
        return Change(FAILED, start, time.monotonic(), self.current, False)

    def _end_of_log(self) -> int:
        return self.log.stat().st_size

    def _wait(self, pattern: str, read: int) -> re.Match[str]:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            with self.log.open() as file:
                file.seek(read)
                if found := re.search(pattern, file.read()):
                    return found
            time.sleep(0.01)
        raise TimeoutError(f"the server's log has no {pattern!r} after {WAIT_SECONDS:.0f} s")


def show(report: Report, counts: Counts) -> bool:
    """Prints what was seen; whether every line holds."""
    print(f"{'change':12} {'count':>5} {'seconds':>8} {'p99 ms':>8} {'before':>8} {'ratio':>6}")
    for kind in (WEIGHTS, PROGRAM, ROLLBACK, FAILED):
        changes = [change for change in report.changes if change.kind == kind]
        if changes:
            seconds = float(np.median([change.end - change.start for change in changes]))
            _row(kind, len(changes), seconds, report, changes, counts.quiet)
    swaps = [change for change in report.changes if change.kind in (WEIGHTS, PROGRAM, ROLLBACK)]
    ratio = _row("all swaps", len(swaps), float("nan"), report, swaps, counts.quiet)
    answers = report.answers
    asked = len(answers.sent) + answers.failed
    lines = [
        (f"{answers.failed} of {asked:,} requests failed", answers.failed == 0),
        (f"{answers.wrong} answers were not exactly those of their version", answers.wrong == 0),
        (f"{report.stale} answers came from a version that was not in use", report.stale == 0),
        (f"{report.compiles} changes of weights alone compiled", report.compiles == 0),
        (f"{report.request_compiles:.0f} requests had to compile", report.request_compiles == 0),
        (f"p99 while versions were swapped: {ratio:.2f} of that before; at most {MOST_RATIO}", ratio <= MOST_RATIO),
    ]  # fmt: skip
    for text, holds in lines:
        print(f"{'ok    ' if holds else 'BROKEN'} {text}")
    for fault in answers.faults:
        print(f"       {fault}")
    return all(holds for _, holds in lines)


def _row(
    kind: str, count: int, seconds: float, report: Report, changes: Sequence[Change], quiet: float
) -> float:
    during, before = report.p99_ms(changes), report.p99_ms(changes, quiet)
    print(f"{kind:12} {count:5} {seconds:8.2f} {during:8.2f} {before:8.2f} {during / before:6.2f}")
    return during / before


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, kind in (("weights", int), ("programs", int), ("failed", int), ("clients", int),
                       ("processes", int), ("quiet", float)):  # fmt: skip
        default = getattr(Counts, name)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"default: {default}")
    counts = Counts(**vars(parser.parse_args()))
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "grpcio", "numpy"))
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}")
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), counts)
    return 0 if show(report, counts) else 3


if __name__ == "__main__":
    sys.exit(main())
