"""Runs that are struck down at random moments and started again until they are finished.

    python -m tests.faults.kills --moments 40 --seed 0 --processes 1,2

Half of the strikes are kill -9, half SIGTERM. Half come at a moment of the whole life of a start, a quarter inside a
save, a quarter in a phase that is drawn. A process is halted, then it is read what it is doing (`phases`) and whether its
folder holds an unfinished save, and only then it is struck: what a line says of a strike is measured. Exits 1 where
anything was not as docs/training.md says.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.faults.starts import SIGNALS, Halting, Started, Strike, begin
from tests.faults.struck import EVERY, STEPS
from tests.faults.verdict import Verdict, finished
from train_job.runs import saved_steps

ANYWHERE, IN_A_SAVE = "anywhere", "in a save"
PHASES = (
    "importing",
    "reading data",
    "waiting for peers",
    "restoring",
    "compiling",
    "the first step",
    "evaluating",
    "starting a save",
    "waiting for a save",
    "marking the run finished",
    "leaving its peers",
)

AGAIN_AND_AGAIN = ("evaluating", "starting a save", "waiting for a save")
LONG = ("importing", "compiling")


@dataclass(frozen=True)
class Moment:
    """When to strike, with what and whom. share: of the life of a start, or of what is left of a phase."""

    signal: int
    where: str
    share: float
    whom: tuple[int, ...]
    parent: bool  # of a process with peers: else kill -9 goes to the child that trains


def moments(count: int, processes: int, chance: random.Random) -> list[Moment]:
    """Half of the signals each; the places as the module says."""
    places = [ANYWHERE] * (count - count // 4 * 2) + [IN_A_SAVE] * (count // 4)
    ours = [phase for phase in PHASES if processes > 1 or "peers" not in phase]
    drawn = chance.sample(ours * (count // len(ours) + 1), count // 4)
    numbers = [SIGNALS[index % 2] for index in range(count)]
    chance.shuffle(numbers)
    everyone = tuple(range(processes))
    targets = [(index,) for index in everyone] + ([everyone] if processes > 1 else [])
    made = [
        Moment(number, where, chance.random(), chance.choice(targets), chance.random() < 0.5)
        for number, where in zip(numbers, places + drawn, strict=True)
    ]
    # Process 0 alone does that.
    made = [replace(one, whom=(0,)) if one.where == "marking the run finished" else one for one in made]
    chance.shuffle(made)
    return made


def halting(moment: Moment, left: int) -> Halting:
    """Of a run with so many steps left: in one of the next five of a kind, and somewhere within it."""
    time = 1 + int(moment.share * min(5, -(-left // EVERY)))
    within = moment.share * 997 % 1
    if moment.where == IN_A_SAVE:
        return Halting(moment.whom[0], f"starting a save {time} {within * 0.1}", unfinished=True)
    again = moment.where in AGAIN_AND_AGAIN
    seconds = within * 2 if moment.where in LONG else 0.0
    return Halting(moment.whom[0], f"{moment.where} {time if again else 1} {seconds}", unfinished=False)


type Unstruck = Callable[[Path, Sequence[str]], int]


@dataclass
class Trial:
    """Runs of one number of processes: one that is left alone, and as many as it takes to be struck so often.

    unstruck: trains in place of processes of its own where nobody strikes, from a root and flags to an exit code.
    """

    folder: Path
    processes: int
    steps: int = STEPS
    cache: Path | None = None
    unstruck: Unstruck | None = None
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)
    starts: int = 0
    runs: int = 0

    def run(self, drawn: Sequence[Moment]) -> Verdict:
        """Strikes at each of the moments, prints a line for each and returns what was found."""
        alone = self.folder / "undisturbed"
        self._leave_alone(alone)
        self.verdict = Verdict(alone, self.processes, self.steps)
        root = self._new_run()
        for number, moment in enumerate(drawn, 1):
            while (strike := self._strike(root, moment)) is None:
                self.verdict.judge_end(root)
                root = self._new_run()
                moment = replace(moment, share=moment.share * 0.8)  # lives were shorter than the first one
            self.tally[strike.place, strike.name] += 1
            print(f"{number:3d}  {strike}", flush=True)
            if finished(root):
                self._finish(root)
                root = self._new_run()
        if not finished(root):
            self._finish(root)
        self._finish(root)  # once more: it is finished, and says so
        return self.verdict

    def _leave_alone(self, root: Path) -> None:
        flags = ["--set", "keep_latest=1000"]
        if self.unstruck is not None:
            assert self.unstruck(root, flags) == 0
            return
        started = self._begin(root, flags)
        self._starting = started.until("the first step")
        codes = started.end()
        self._training = time.monotonic() - started.began - self._starting
        assert codes == [0] * self.processes, started.said()

    def _new_run(self) -> Path:
        self.runs += 1
        return self.folder / f"run-{self.runs}"

    def _begin(self, root: Path, flags: Sequence[str] = (), halting: Halting | None = None) -> Started:
        self.starts += 1
        # What halts in the compiler is to find it at work.
        cached = halting is None or not halting.when.startswith("compiling")
        flags = [*flags, "--steps", str(self.steps)]
        cache = (self.cache or self.folder / "cache") if cached else None
        return begin(root, self.processes, flags, cache, halting)

    def _strike(self, root: Path, moment: Moment) -> Strike | None:
        """None where the run was finished before the moment came."""
        before = max(saved_steps(root / "runs" / "toy"), default=0)
        if moment.where == ANYWHERE:
            started = self._begin(root)
            life = self._starting + self._training * (1 - before / self.steps)
            halted = started.halt_after(moment.share * life, moment.whom)
        else:
            started = self._begin(root, halting=halting(moment, self.steps - before))
            halted = started.halted(moment.whom)
        if halted is None:
            codes = started.end()
            self.verdict.require(
                codes == [0] * self.processes, f"{root.name}: exits {codes}, {started.said()}"
            )
            return None
        strike = started.strike(moment.whom, moment.signal, moment.parent)
        self.verdict.judge(root, strike, before)
        return strike

    def _finish(self, root: Path) -> None:
        started = self._begin(root)
        codes, said = started.end(), started.said()
        self.verdict.require(
            codes == [0] * self.processes, f"{root.name}: the last start exits {codes}: {said}"
        )
        self.verdict.judge_end(root)

    def summary(self) -> str:
        """Counts by phase, and of what was checked."""
        kinds = sorted({name for _, name in self.tally})
        rows = [f"    {'phase':44s}" + "".join(f"{kind:>9s}" for kind in kinds)]
        for place in sorted({place for place, _ in self.tally}):
            rows.append(f"    {place:44s}" + "".join(f"{self.tally[place, kind]:9d}" for kind in kinds))
        total = sum(self.tally.values())
        return "\n".join(
            [
                f"{total} strikes, {self.processes} process{'es' * (self.processes > 1)}: {self.starts} starts of "
                f"{self.runs} run{'s' * (self.runs > 1)}, and one left alone",
                *rows,
                self.verdict.summary(),
            ]
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=__doc__)
    parser.add_argument("--moments", type=int, default=40, help="strikes, for each number of processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", default="1,2")
    options = parser.parse_args(arguments)
    failed = False
    for processes in map(int, options.processes.split(",")):
        chance = random.Random(f"{options.seed} {processes}")
        trial = Trial(Path(tempfile.mkdtemp(prefix="kills-")), processes)
        verdict = trial.run(moments(options.moments, processes, chance))
        print(trial.summary(), flush=True)
        for fault in verdict.faults:
            print(f"FAULT: {fault}", flush=True)
        failed |= bool(verdict.faults)
        if not verdict.faults:
            shutil.rmtree(trial.folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
