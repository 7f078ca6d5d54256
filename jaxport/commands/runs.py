"""jaxport runs [--root DIR] [--json]
jaxport runs nano bard
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxport.durations import age
from jaxport.sparklines import chart, spread
from train_job.listing import (
    FINISHED,
    UNREADABLE,
    Run,
    all_runs,
    common_step,
    curve,
    differences,
    figures_at,
    some_runs,
)

_LINES, _WIDTH = 4, 72  # of a curve, in characters
# Left out one after the other where a terminal is too narrow.
_LESSER = ("starts", "size", "val_loss", "goodput", "preset", "mfu")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists the runs of a root; of those that are named, shows what differs, figures and curves."
    )
    parser.add_argument(
        "names", nargs="*", metavar="RUN", help="runs to show side by side (default: a list of all)"
    )
    parser.add_argument(
        "--root", type=Path, default=Path("work"), metavar="DIR", help="holds runs/ (default: ./work)"
    )
    parser.add_argument("--json", action="store_true", help="one object for each run")


def run(options: argparse.Namespace) -> int:
    found = some_runs(options.root, options.names) if options.names else all_runs(options.root)
    if options.json:
        print(json.dumps([each.as_json() for each in found], indent=2, allow_nan=False))
        return 0
    if options.names:
        _show(found)
    elif found:
        _list(found)
    else:
        print(f"no runs in {options.root / 'runs'}; jaxport train --preset nano makes one")
    return 0


def _list(found: Sequence[Run]) -> None:
    console, columns = _console(), _columns(found, time.time())
    lesser = [name for name in _LESSER if name in columns]
    while lesser and console.measure(_table(columns)).maximum > console.width:
        del columns[lesser.pop(0)]
    console.print(_table(columns))
    _say_why(console, found)


def _say_why(console: Any, found: Sequence[Run]) -> None:
    for each in found:
        if each.why:
            console.print(_plain(f"{each.name}: {each.why}", "yellow"))


def _columns(found: Sequence[Run], now: float) -> dict[str, list[str]]:
    """Texts of each column; a column in which nothing is known is left out."""
    cells: dict[str, Callable[[Run], str]] = {
        "run": lambda run: run.name,
        "preset": lambda run: run.preset,
        "state": _state,
        "metric": lambda run: (
            f"{run.headline} {run.figures()[run.headline]:.4g}" if _knows(run, run.headline) else ""
        ),
        "val_loss": lambda run: _figure(run, "val_loss", "{:.4g}"),
        "speed": lambda run: f"{run.speed[1]:,.0f} {run.speed[0]}/s" if run.speed else "",
        "mfu": lambda run: _figure(run, "mfu", "{:.1%}"),
        "goodput": lambda run: _figure(run, "goodput", "{:.0%}"),
        "starts": lambda run: str(run.record.starts or "") if run.record else "",
        "updated": lambda run: "" if run.updated is None else age(max(0, round(now - run.updated))),
        "size": lambda run: f"{run.size / 1e6:,.1f} MB" if run.record else "",
    }
    columns = {name: [cell(run) for run in found] for name, cell in cells.items()}
    return {name: texts for name, texts in columns.items() if any(texts)}


def _state(run: Run) -> str:
    return run.state if run.state in (FINISHED, UNREADABLE) else f"{run.state} {run.step}/{run.steps}"


def _knows(run: Run, name: str) -> bool:
    return run.figures().get(name) is not None


def _figure(run: Run, name: str, form: str) -> str:
    return form.format(run.figures()[name]) if _knows(run, name) else ""


def _show(found: Sequence[Run]) -> None:
    console = _console()
    console.print(_side_by_side(found, "", _facts(found)))
    _say_why(console, found)
    if differing := differences(found):
        console.print()
        console.print(_side_by_side(found, "what differs", differing))
    step = common_step(found)
    if step is None and any(run.why and not run.rows for run in found):
        console.print("\nno figures to compare: see above", highlight=False)
    elif step is None:
        console.print("\nno step that all of them have a row of: no figures to compare", highlight=False)
    else:
        console.print()
        console.print(_side_by_side(found, f"at step {step}", figures_at(found, step)))
    name = next((each for each in ("val_loss", "train_loss") if all(curve(run, each) for run in found)), None)
    if name is not None:
        console.print(_plain("\n" + "\n".join(_curves(found, name, console.width))))


def _facts(found: Sequence[Run]) -> dict[str, list[Any]]:
    columns = _columns(found, time.time())
    begun = [run.record.created_at if run.record else None for run in found]
    facts: dict[str, list[Any]] = {
        name: texts for name, texts in columns.items() if name not in ("run", "metric", "val_loss")
    }
    return {
        **facts,
        "begun": begun,
        "data": [run.record.data.get("name") if run.record else None for run in found],
    }


def _side_by_side(found: Sequence[Run], title: str, values: Mapping[str, Sequence[Any]]) -> Any:
    rows = [(name, *map(_text, of)) for name, of in values.items()]
    return _rows([title, *(run.name for run in found)], rows)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _curves(found: Sequence[Run], name: str, width: int) -> list[str]:
    """One below the other, on the same scales, each with its first, last and lowest value."""
    curves = [curve(run, name) for run in found]
    low, high = (of(value for points in curves for _, value in points) for of in (min, max))
    last = max(points[-1][0] for points in curves)
    lines = [f"{name} up to step {last}, from {low:.4g} to {high:.4g}"]
    for run, points in zip(found, curves, strict=True):
        lines += [
            f"  {line}".rstrip()
            for line in chart(spread(points, min(width - 4, _WIDTH), last), _LINES, low, high)
        ]
        (first, begins), (end, ends) = points[0], points[-1]
        at, least = min(points, key=lambda point: point[1])
        lines.append(
            f"  {run.name}: {begins:.4g} at {first}, {ends:.4g} at {end}; lowest {least:.4g} at {at}"
        )
    return lines


def _table(columns: Mapping[str, Sequence[str]]) -> Any:
    return _rows(list(columns), zip(*columns.values(), strict=True))


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        table.add_column(_plain(name), no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def _plain(text: str, style: str = "") -> Any:
    """As it is: a name may look like markup of rich."""
    from rich.text import Text

    return Text(text, style)


def _console() -> Any:
    """As wide as it takes where no terminal sets a width."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=1000)
