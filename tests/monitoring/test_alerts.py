"""Every alert says how bad it is, what is wrong and where to read on; the same rules go to every kind of Prometheus."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.deploy.objects import ROOT, of_kind, outputs
from tests.monitoring.known import SCRAPED, known, set_ups, works_in
from tests.monitoring.promql import asked
from tests.monitoring.source import FOLDER, ROUTES, Alert, alerts, groups

RUNBOOK = ROOT / "docs" / "monitoring.md"


def sections() -> dict[str, str]:
    """Heading of docs/monitoring.md of the third level -> its text."""
    parts = re.split(r"^### (.+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    return {
        title: re.split(r"^## ", text, flags=re.MULTILINE)[0]
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_says_what_it_has_to(alert: Alert) -> None:
    assert alert.labels.keys() == {"severity"} and alert.labels["severity"] in ("critical", "warning", "info")
    assert alert.annotations.keys() == {"summary", "runbook"}
    assert alert.annotations["runbook"] == f"docs/monitoring.md#{alert.name.lower()}"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_has_its_section(alert: Alert) -> None:
    """What it means, and what to do."""
    text = sections()[alert.name]
    assert "**Means**" in text and "**Do**" in text
    assert re.search(rf"^\*\*{alert.labels['severity'].capitalize()}\.\*\*", text.strip())


def test_every_section_has_its_alert() -> None:
    assert set(sections()) == {alert.name for alert in alerts()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_a_summary_names_labels_that_the_result_has(alert: Alert) -> None:
    """Others are shown as nothing."""
    wanted = asked(alert.expression)
    has = wanted.by
    if has is None:
        has = {*known().labels[wanted.selectors[0].name], *SCRAPED}
    assert set(re.findall(r"\$labels\.(\w+)", alert.annotations["summary"])) <= set(has)


def table() -> list[list[str]]:
    """The cells of the table of alerts in docs/monitoring.md, its head first."""
    rows = re.search(r"^(\| alert \| .*\n)\|[-|]+\n((?:\|.*\n)+)", RUNBOOK.read_text(), re.MULTILINE)
    assert rows is not None
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (rows[1] + rows[2]).splitlines()]


def test_the_table_says_where_each_alert_can_fire() -> None:
    head, *rows = table()
    assert head == ["alert", "severity", *set_ups()]
    assert rows == [
        [
            f"[{alert.name}](#{alert.name.lower()})",
            alert.labels["severity"],
            *("yes" if each in works_in(alert.expression) else "no" for each in set_ups()),
        ]
        for alert in alerts()
    ]


def test_an_outage_a_failed_job_and_a_full_memory_are_told_of_on_google_too() -> None:
    """There are alerts that need what Google's collectors lack; for each there is another."""
    there = {alert.name for alert in alerts() if "GKE" in works_in(alert.expression)}
    assert {
        "JaxportNoServer",
        "JaxportJobPodsFailed",
        "JaxportHostMemoryNearlyFull",
        "JaxportPodPending",
    } <= there
    assert {alert.name for alert in alerts()} - there == {"JaxportJobFailed"}


def test_names_of_alerts_are_unique() -> None:
    names = [alert.name for alert in alerts()]
    assert len(names) == len(set(names)) and all(re.fullmatch(r"Jaxport[A-Za-z]+", name) for name in names)


def test_there_is_one_source_for_the_operator_for_google_and_for_a_plain_prometheus() -> None:
    [operators] = of_kind(outputs()["gke-l4 with optional/monitoring"], "PrometheusRule")
    [googles] = of_kind(outputs()["gke-l4 with optional/managed-monitoring"], "Rules")
    command = re.search(r"^#   (sed .*) >", (FOLDER / "rules.yaml").read_text(), re.MULTILINE)
    assert command is not None and command[1] in RUNBOOK.read_text()
    plain = subprocess.run(
        ["sh", "-c", command[1]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert yaml.safe_load(plain) == operators["spec"] == googles["spec"] == {"groups": groups()}
    # Google's needs it, the others take it.
    assert all(group.keys() == {"name", "interval", "rules"} for group in groups())


def receiver(config: dict[str, Any], labels: dict[str, str]) -> str:
    """Who gets an alert with these labels: the first route whose matchers hold, as Alertmanager goes through them."""

    def holds(matcher: str) -> bool:
        name, _, value = matcher.partition(" = ")
        return labels.get(name) == value

    routes = (route for route in config["route"]["routes"] if all(map(holds, route["matchers"])))
    return next(routes, config["route"])["receiver"]


def told(config: dict[str, Any]) -> dict[str, set[str]]:
    """Receiver -> the severities, or the watchdog, that it gets."""
    found: dict[str, set[str]] = {}
    for alert in alerts():
        what = alert.name if alert.name == "JaxportWatchdog" else alert.labels["severity"]
        to = receiver(config, {"alertname": alert.name, **alert.labels})
        found.setdefault(to, set()).add(what)
    return found


WHO = {"pager": {"critical"}, "channel": {"warning"}, "nobody": {"info"}, "heartbeat": {"JaxportWatchdog"}}


def test_the_example_of_routes_tells_somebody_of_every_alert_that_asks_for_somebody() -> None:
    config = yaml.safe_load(ROUTES.read_text())
    assert told(config) == WHO
    ways = {each["name"]: each.keys() - {"name"} for each in config["receivers"]}
    assert ways.keys() == WHO.keys() and all(bool(way) == (name != "nobody") for name, way in ways.items())
    named = {name for rule in config["inhibit_rules"] for key in ("source_matchers", "target_matchers")
             for name in [rule[key][0].removeprefix("alertname = ")]}  # fmt: skip
    assert named <= {alert.name for alert in alerts()}


def test_a_severity_that_nobody_is_told_of_is_found() -> None:
    config = yaml.safe_load(ROUTES.read_text())
    config["route"]["routes"][2]["matchers"] = ["severity = warn"]
    assert told(config) != WHO and "warning" in told(config)["nobody"]


def test_dashboards_come_as_a_config_map_that_grafana_looks_for() -> None:
    for component in ("monitoring", "managed-monitoring"):
        maps = of_kind(outputs()[f"gke-l4 with optional/{component}"], "ConfigMap")
        [made] = [each for each in maps if each["metadata"]["labels"].get("grafana_dashboard") == "1"]
        assert made["metadata"]["name"] == "jaxport-dashboards"
        files = {file.name: file.read_text() for file in (FOLDER / "dashboards").iterdir()}
        assert made["data"] == files
