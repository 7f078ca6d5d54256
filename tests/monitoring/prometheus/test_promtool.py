"""The alerts through Prometheus' own tool: each fires on the series it is for, and is silent beside them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.known import problems
from tests.monitoring.prometheus import promtool as promtool_module
from tests.monitoring.prometheus.cases import CASES, Case
from tests.monitoring.prometheus.promtool import check, found, run
from tests.monitoring.source import DASHBOARDS, alerts, groups, queries


def test_the_rules_are_what_prometheus_takes(tmp_path: Path) -> None:
    code, said = check(tmp_path, groups())
    assert code == 0 and f"SUCCESS: {len(alerts())} rules found" in said


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_what_a_dashboard_asks_is_promql(file: Path, tmp_path: Path) -> None:
    # Each as a rule of its own, which is how promtool reads expressions.
    rules = [
        {"record": f"panel:{number}", "expr": each.concrete} for number, each in enumerate(queries(file))
    ]
    code, said = check(tmp_path, [{"name": file.stem, "rules": rules}])
    assert code == 0 and f"SUCCESS: {len(rules)} rules found" in said, said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_alerts_of_a_world(case: Case, tmp_path: Path) -> None:
    code, said = run(tmp_path, groups(), [case])
    assert code == 0, said


def test_every_alert_is_met_firing_and_silent() -> None:
    fired = {name for case in CASES for _, name, fires in case.expect if fires}
    silent = {name for case in CASES for _, name, fires in case.expect if not fires}
    assert fired == silent == {alert.name for alert in alerts()}


def test_the_series_of_the_cases_are_such_as_there_are() -> None:
    """A case on a name that no code has would prove a rule that never fires."""
    said = [problem for case in CASES for series in case.series for problem in problems(series)]
    assert said == []


def first(groups: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(rule for group in groups for rule in group["rules"] if rule["alert"] == name)


def renamed(old: str, new: str) -> Callable[[list[dict[str, Any]]], None]:
    def plant(groups: list[dict[str, Any]]) -> None:
        for group in groups:
            for rule in group["rules"]:
                rule["expr"] = rule["expr"].replace(old, new)

    return plant


def changed(alert: str, key: str, value: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda groups: first(groups, alert).update({key: value})


PLANTED: dict[str, Callable[[list[dict[str, Any]]], None]] = {
    "a series that is not there": renamed("jaxport_shed_total", "jaxport_sheds_total"),
    "a label that is not there": renamed("by (namespace, model, le)", "by (namespace, name, le)"),
    "another state": renamed('state="FAILED"', 'state="BROKEN"'),
    "a threshold ten times as high": renamed("> 0.01", "> 0.1"),
    "a threshold ten times as low": renamed("> 0.01", "> 0.001"),
    "a comparison the other way round": renamed("== 0", "== 1"),
    "the first event of a series forgotten": renamed("or (jaxport_load", "and (jaxport_load"),
    "a shorter wait": changed("JaxportPodPending", "for", "5m"),
    "a longer wait": changed("JaxportScrapeFailing", "for", "1h"),
    "a summary that names a label which is not there": changed(
        "JaxportJobFailed",
        "annotations",
        {"summary": "{{ $labels.job }}", "runbook": ""},  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_fails(fault: str, tmp_path: Path) -> None:
    planted = copy.deepcopy(groups())
    PLANTED[fault](planted)
    before = {rule["alert"]: rule for group in groups() for rule in group["rules"]}
    touched = {name for name, rule in before.items() if rule != first(planted, name)}
    cases = [case for case in CASES if touched & {name for _, name, _ in case.expect}]
    assert cases
    code, said = run(tmp_path, planted, cases)
    assert code == 1 and "FAILED" in said


def test_an_expression_that_is_no_promql_is_refused(tmp_path: Path) -> None:
    for expression in (
        "sum by (",
        "rate(jaxport_shed_total)",
        "jaxport_shed_total{",
        "jaxport_queue_depth > 'a'",
    ):
        code, said = check(
            tmp_path, [{"name": "planted", "rules": [{"alert": "Planted", "expr": expression}]}]
        )
        assert code != 0 and "could not parse" in said, said


def test_without_promtool_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="the package prometheus"):
        found("promtool")
    with pytest.raises(RuntimeError, match="the package prometheus"):
        promtool_module.promtool("--version")
