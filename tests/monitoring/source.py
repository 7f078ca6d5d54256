"""What is in deploy/optional/monitoring: the alerts and the dashboards."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.deploy.objects import DEPLOY, parsed

FOLDER = DEPLOY / "optional" / "monitoring"
ROUTES = FOLDER / "alertmanager.yaml"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))


@dataclass(frozen=True)
class Alert:
    """One alert rule."""

    name: str
    expression: str
    labels: dict[str, str]
    annotations: dict[str, str]


@cache
def groups() -> list[dict[str, Any]]:
    """spec.groups of the PrometheusRule, which is what a plain rules file has as groups."""
    [rule] = parsed((FOLDER / "rules.yaml").read_text())
    return rule["spec"]["groups"]


def alerts() -> list[Alert]:
    """Every alert. Recording rules there are none: each would be a name that no code has."""
    return [
        Alert(rule["alert"], rule["expr"], rule["labels"], rule["annotations"])
        for group in groups()
        for rule in group["rules"]
    ]


@dataclass(frozen=True)
class Query:
    """expression: with the panel's variables; legend: its legendFormat."""

    panel: str
    expression: str
    legend: str = ""

    @property
    def concrete(self) -> str:
        """As Grafana sends it: with an interval in place of the variable."""
        return self.expression.replace("$__rate_interval", "5m").replace("$__range", "1h")


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel, those of collapsed rows too."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries(file: Path) -> Iterator[Query]:
    """What a dashboard asks Prometheus for, its variables included."""
    dashboard = json.loads(file.read_text())
    for panel in panels(dashboard):
        for target in panel.get("targets", []):
            yield Query(panel["title"], target["expr"], target.get("legendFormat", ""))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            values = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert values is not None, f"{file.name}: {variable['name']} is not label_values(series, label)"
            # Grafana's own function; what it asks for is the values of the label.
            yield Query(f"variable {variable['name']}", f"count by ({values[2]}) ({values[1]})")
