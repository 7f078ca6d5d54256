"""Every number of every alert is the one that it is: beside it the worlds of edges.py come out otherwise."""

import copy
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.known import problems
from tests.monitoring.prometheus.edges import EDGES, Edge
from tests.monitoring.prometheus.promtool import promtool
from tests.monitoring.source import alerts, groups

NAMES = [alert.name for alert in alerts()]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in groups() for rule in group["rules"]}
# What is compared with, windows, and what a window's increase is divided by.
NUMBER = re.compile(r"(?:==|<=|>=|<|>|/) (\d+(?:\.\d+)?)\b|\[(\d+[smhd])\]|offset (\d+[smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def of(name: str) -> list[Edge]:
    return [edge for edge in EDGES if edge.alert == name]


def changed(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what was changed, the rule) with one of its numbers a bit less or more."""
    rule = RULES[name]
    for match in NUMBER.finditer(rule["expr"]):
        start, end = match.span(match.lastindex or 0)
        for other in _beside(rule["expr"][start:end]):
            expression = rule["expr"][:start] + other + rule["expr"][end:]
            yield f"{match[0]} at {start}: {other}", {**rule, "expr": expression}
    for other in _beside(rule["for"]) if "for" in rule else ("1h",):
        yield f"for: {other}", {**rule, "for": other}


def _beside(number: str) -> tuple[str, ...]:
    """The numbers to try in its place: a flag the other way round, a count one less and more, else a fifth."""
    if number[-1] in SECONDS:
        seconds = int(number[:-1]) * SECONDS[number[-1]]
        return (f"{seconds * 4 // 5}s", f"{seconds * 5 // 4}s")
    if number in ("0", "1"):
        return (str(1 - int(number)),)
    if number.isdigit() and int(number) < 15:
        return (str(int(number) - 1), str(int(number) + 1))
    return (f"{float(number) * 0.8:g}", f"{float(number) * 1.25:g}")


def failures(folder: Path, name: str, rules: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many expectations of the worlds of an alert each of the rules (its own name -> rule) fails."""
    named = [{**rule, "alert": own} for own, rule in rules.items()]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "edges", "rules": named}]}))
    by_interval: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for edge in of(name):
        by_interval[edge.every].append(_test(edge, list(rules)))
    found = dict.fromkeys(rules, 0)
    for every, tests in by_interval.items():
        file = folder / f"every-{every}.yaml"
        content = {"rule_files": ["rules.yaml"], "evaluation_interval": every, "tests": tests}
        file.write_text(yaml.safe_dump(content))
        code, said = promtool("test", "rules", file)
        failed = re.findall(r'alertname=\\?"(\w+)\\?"', said)
        assert (code == 0) == (failed == []), said
        for own in failed:
            found[own] += 1
    return found


def _test(edge: Edge, names: list[str]) -> dict[str, Any]:
    times = [(at, [{"labels": "{}", "value": 1}]) for at in edge.firing] + [(at, []) for at in edge.silent]
    checks = [
        {
            "expr": f'count(ALERTS{{alertname="{own}", alertstate="firing"}}) > bool 0',
            "eval_time": at,
            "exp_samples": samples,
        }
        for own in names
        for at, samples in times
    ]
    series = [{"series": name, "values": values} for name, values in edge.series.items()]
    return {"interval": edge.every, "input_series": series, "promql_expr_test": checks}


def test_every_alert_has_worlds_on_both_sides() -> None:
    for name in NAMES:
        assert any(edge.firing for edge in of(name)), name
        assert any(edge.silent for edge in of(name)), name
    assert {edge.alert for edge in EDGES} == set(NAMES)


def test_the_worlds_have_series_that_there_are() -> None:
    assert [problem for edge in EDGES for series in edge.series for problem in problems(series)] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_fires_on_one_side_and_is_silent_on_the_other(name: str, tmp_path: Path) -> None:
    assert failures(tmp_path, name, {name: RULES[name]}) == {name: 0}


@pytest.mark.parametrize("name", NAMES)
def test_no_number_could_be_another(name: str, tmp_path: Path) -> None:
    planted = {f"{name}{number}": each for number, each in enumerate(changed(name))}
    found = failures(tmp_path, name, {own: copy.deepcopy(rule) for own, (_, rule) in planted.items()})
    assert [planted[own][0] for own, count in found.items() if count == 0] == []


def test_a_number_is_found_wherever_it_stands() -> None:
    text = "a / 300 > 0.01 and max_over_time(b[3d]) == 1 unless c offset 15m <= 30 * 86400"
    assert [match[0] for match in NUMBER.finditer(text)] == [
        "/ 300",
        "> 0.01",
        "[3d]",
        "== 1",
        "offset 15m",
        "<= 30",
    ]
