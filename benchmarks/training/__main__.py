"""jaxport's training loop beside a bare jitted one: python -m benchmarks.training [--preset tiny] [--docs]

Both train the same model on the same batches with the same optimizer, in turns of a few steps in one process. Every
other turn of jaxport's has an asynchronous save of the whole state in its background. Exits with 1 where the two did
not compute the same, or where a save outlasted its turn, as then nothing was compared.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.report import between
from benchmarks.training.machine import processor
from benchmarks.training.overhead import Turns, alternate
from train_job.settings import TrainSettings

ROOT = Path(__file__).resolve().parents[2]
BETWEEN_SAVES = 200  # steps: the share of a save's cost is given for one save in so many
SAME = 1e-3  # of a loss


def rows(turns: Turns) -> list[tuple[str, str, str]]:
    """(what, median or mean, range)."""
    plain, saving = turns.ratios(saving=False), turns.ratios(saving=True)
    cost = statistics.median(turns.save_seconds)
    share = cost / (BETWEEN_SAVES * turns.step_seconds)
    return [
        ("a step of the bare loop", f"{turns.step_seconds * 1e3:,.1f} ms", ""),
        ("a step of jaxport, of a bare one", f"{statistics.median(plain):.3f}", middle(plain)),
        ("the same, a save in the background", f"{statistics.median(saving):.3f}", middle(saving)),
        (
            "what a save costs the steps",
            f"{cost * 1e3:,.0f} ms",
            middle([s * 1e3 for s in turns.save_seconds], 0),
        ),
        (f"one save in {BETWEEN_SAVES} steps, of their time", f"{share:.2%}", ""),
        ("waiting for input, of a step", f"{turns.input_wait:.3%}", ""),
    ]


def middle(values: Sequence[float], digits: int = 3) -> str:
    """The quartiles and the number of turns."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.{digits}f} to {high:.{digits}f} (quartiles of {len(values)})"


def markdown(options: argparse.Namespace, turns: Turns) -> str:
    words = f"--preset {options.preset} --turns {options.turns} --steps {options.steps}"
    words += f" --batch-size {options.batch_size}" if options.batch_size else ""
    where = f"{date.today().isoformat()}, {os.cpu_count()} cores of {processor()}, jax {version('jax')}"
    lines = [
        f"`python -m benchmarks.training {words}`, {where}; losses agree to {turns.disagreement:.0e}.",
        "",
        "| `" + options.preset + "` | median | range |",
        "| --- | ---: | --- |",
    ]
    return "\n".join(lines + [f"| {what} | {value} | {spread} |" for what, value, spread in rows(turns)])


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag = parser.add_argument
    flag("--preset", default="tiny")
    flag("--turns", type=int, default=40, help="of each loop, half of ours with a save (default: 40)")
    flag("--steps", type=int, default=2, help="of a turn (default: 2)")
    flag("--batch-size", type=int, help="rows of a step (default: the preset's)")
    flag("--docs", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if options.turns < 4 or options.steps < 1:
        parser.error("--turns needs at least 4, --steps at least 1")
    return options


def measured(options: argparse.Namespace, root: Path) -> Turns:
    wanted = {
        "eval_every": str(options.steps),
        "checkpoint_every": str(2 * options.steps),
        "warmup_steps": "1",
    }
    if options.batch_size:
        wanted["batch_size"] = str(options.batch_size)
    return alternate(TrainSettings.from_flags(options.preset, root=root, overrides=wanted), options.turns)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {version('jax')}"
    )
    with tempfile.TemporaryDirectory() as folder:
        turns = measured(options, Path(folder))
    for what, value, spread in rows(turns):
        print(f"{what:<38}{value:>12}  {spread}")
    print(f"losses agree to {turns.disagreement:.1e}")
    if turns.disagreement > SAME:
        print(f"needed: {SAME:.0e}; the two loops did not do the same")
        return 1
    if turns.outlasted:
        print(f"{turns.outlasted} saves outlasted their turn: give turns more steps (--steps)")
        return 1
    if options.docs:
        page = ROOT / "docs" / "benchmarks.md"
        page.write_text(between(page.read_text(), f"training {options.preset}", markdown(options, turns)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
