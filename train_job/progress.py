"""What a person sees: a bar on a terminal, one plain line per interval anywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

_LINE_EVERY_S = 10.0
_WORTH_SAYING = (
    0.05  # of a step's time: data that come slower than steps, and not a thread that was late once
)


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
        self._progress.console.print(Text(text))  # names of metrics are whoever's: no markup of rich

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


@contextmanager
def bytes_read(what: str, total: int, stream: TextIO | None = None) -> Iterator[Callable[[int], None]]:
    """Within, what it gives is told of bytes as they are read: a bar on a terminal, else a line now and then."""
    where = stream or sys.stdout
    if not where.isatty():
        yield _Lines(what, total, where).advance
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=where)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.update(task, advance=count)


class _Lines:
    """One line in so many seconds, of what takes longer than that."""

    def __init__(self, what: str, total: int, stream: TextIO) -> None:
        self._what, self._total, self._stream = what, total, stream
        self._read, self._said = 0, time.monotonic()

    def advance(self, count: int) -> None:
        """`count` more bytes were read."""
        self._read += count
        if (now := time.monotonic()) - self._said >= _LINE_EVERY_S:
            self._said = now
            print(
                f"{self._what}: {self._read / 1e6:,.0f} of {self._total / 1e6:,.0f} MB",
                file=self._stream,
                flush=True,
            )


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
    waited = row.get("input_wait_seconds", 0.0) / row.get("step_seconds", math.inf)
    if waited >= _WORTH_SAYING:
        shown.append(f"waits for data {waited:.0%}")
    if "mfu" in row:
        shown.append(f"mfu {row['mfu']:.1%}")
    return "  ".join(shown)
