"""What others have named is printed as it is, whatever rich would make of it: markup, and names of emoji."""

import io
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from converters.compare.figures import Comparison, WayFigures
from converters.compare.table import print_table
from jaxport.cluster.status import Row
from jaxport.commands import bench, compare, runs, status
from train_job.progress import Bar

NAME = "[/x][macro]:x:"


def in_an_interval(console: Console) -> None:
    Bar(console, 0, 2).interval(f"step 1/2  {NAME} 0.5")


def in_the_runs(console: Console) -> None:
    run: Any = SimpleNamespace(name=NAME, why="no record")
    runs._say_why(console, [run])


def in_a_bench(console: Console) -> None:
    result = bench.Result(NAME, 1, 1, 1, 1.0, 1, 1.0, 1.0, 1.0, 1.0, 0, {}, None, None, None)
    bench._table([result])


def in_the_status(console: Console) -> None:
    row = Row("train", "job", NAME, "Running", NAME, 1, 1, 0, 0, 1, 2, NAME, 0.5, 60)
    console.print(status.table([row]))


def in_a_comparison(console: Console) -> None:
    way = WayFigures("jit", "", reason=NAME)
    machine = {"cpu": "", "cores": 1, "platform": "cpu", "load_before": 0.0}
    found = Comparison(NAME, 1, "", NAME, "", 1.0, 1, None, {}, machine, (way,))
    print_table(found, console)


@pytest.mark.parametrize(
    ("printing", "times"),
    [
        (in_an_interval, 1),
        (in_the_runs, 1),
        (in_a_bench, 1),
        (in_the_status, 3),
        (in_a_comparison, 3),
    ],
)
def test_a_name_is_no_markup(
    printing: Callable[[Console], None], times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    printing(Console(width=200))
    assert capsys.readouterr().out.count(NAME) == times


def test_nor_in_the_moving_line_of_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with compare._progress() as say:
        say(f"jit is of {NAME}")
    assert NAME in sys.stderr.getvalue()
