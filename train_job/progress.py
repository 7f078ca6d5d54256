"""What a person sees: a bar on a terminal, one plain line per interval anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter(Protocol):
    """Told about every step and every interval."""

    def advance(self, step: int) -> None:
        """`step` steps are under way or done."""
        ...

    def interval(self, text: str) -> None:
        """A finished interval, in one line."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainLines:
    """One line per interval: what log collectors want."""

    def advance(self, step: int) -> None:
        """Says nothing."""

    def interval(self, text: str) -> None:
        """Prints the line."""
        print(text, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Quiet(PlainLines):
    """Nothing: what process 0 prints is true of all."""

    def interval(self, text: str) -> None:
        """Says nothing."""


class Bar:
    """A moving bar with the intervals' lines above it."""

    def __init__(self, console: Console, done: int, steps: int) -> None:
        self._progress = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
        )
        self._task = self._progress.add_task("training", total=steps, completed=done)

    def advance(self, step: int) -> None:
        """Moves the bar."""
        self._progress.update(self._task, completed=step)

    def interval(self, text: str) -> None:
        """Prints the line above the bar."""
        self._progress.console.print(text, highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def reporter(done: int, steps: int, stream: TextIO | None = None) -> Reporter:
    """A Bar when `stream` (standard output) is a terminal, PlainLines otherwise."""
    where = stream or sys.stdout
    return Bar(Console(file=where), done, steps) if where.isatty() else PlainLines()


def interval_line(row: Mapping[str, Any], steps: int, unit: str) -> str:
    """ "step 40/300  train_loss 2.61  val_loss 2.70  ...": a metrics row for people."""
    shown = [f"step {row['step']:>{len(str(steps))}}/{steps}"]
    for name, value in row.items():
        if name.startswith(("train_", "val_")):
            shown.append(f"{name} {value:.4f}")
    if "grad_norm" in row:
        shown.append(f"grad_norm {row['grad_norm']:.3g}")
    shown.append(f"lr {row['lr']:.2e}")
    shown.append(f"{row[f'{unit}_per_s']:,.0f} {unit}/s")
    if "mfu" in row:
        shown.append(f"mfu {row['mfu']:.1%}")
    return "  ".join(shown)
