"""jaxport status [--namespace NAME] [--json] [--watch]"""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from jaxport.cluster.api import Api
from jaxport.cluster.errors import Unreachable
from jaxport.cluster.flags import add_cluster_flags, note, open_api
from jaxport.cluster.status import Row, rows
from jaxport.durations import age

EVERY = 2.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the stages on a cluster: their phase, pods, preemptions, and how far a training is."
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object for each Job, and one for the servers")
    form.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
    add_cluster_flags(parser)


def run(options: argparse.Namespace) -> int:
    api = open_api(options)
    if options.json:
        found = [as_json(row) for row in rows(api, options.namespace)]
        print(json.dumps(found, indent=2, allow_nan=False))
    elif options.watch:
        _watch(api, options.namespace)
    else:
        _print(rows(api, options.namespace), options.namespace)
    return 0


def as_json(row: Row) -> dict[str, Any]:
    """Its fields. JSON has no number for a loss that is NaN or infinite: its value is null beside the metric's name."""
    value = row.value if row.value is not None and math.isfinite(row.value) else None
    return dataclasses.asdict(row) | {"value": value}


def _watch(api: Api, namespace: str) -> None:
    """Until Ctrl-C. An API that is out of reach for a while ends nothing."""
    if not sys.stdout.isatty():
        while True:
            _look(api, namespace, lambda found: _print(found, namespace))
            time.sleep(EVERY)
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        while True:
            _look(api, namespace, lambda found: live.update(table(found), refresh=True))
            time.sleep(EVERY)


def _look(api: Api, namespace: str, show: Callable[[list[Row]], None]) -> None:
    try:
        show(rows(api, namespace))
    except Unreachable as error:
        note(str(error))


def _print(found: list[Row], namespace: str) -> None:
    from rich.console import Console

    if not found:
        print(f"nothing of jaxport in namespace {namespace}; jaxport submit all brings it")
        return
    Console().print(table(found))


def table(found: list[Row]):
    """A rich table."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("stage", "run", "phase", "pods", "failed", "preempted", "step", "metric", "age"):
        shown.add_column(name, justify="left" if name in ("stage", "run", "phase", "metric") else "right")
    for row in found:
        cells = (
            row.stage,
            row.run,
            row.phase,
            f"{row.pods}/{row.wanted}",
            str(row.failed),
            str(row.preempted),
            "" if row.step is None else f"{row.step}/{row.steps}",
            "" if row.value is None else f"{row.metric} {row.value:g}",
            age(row.age),
        )
        shown.add_row(*map(Text, cells))
        if row.detail:
            shown.add_row("", "", Text(row.detail, overflow="fold"))
    return shown
