"""Dashboards as Grafana reads them, as far as that can be said without one: it fills in what is missing in silence."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.known import known
from tests.monitoring.promql import asked
from tests.monitoring.source import DASHBOARDS, Query, panels, queries

OF_A_BOARD = {
    "uid", "title", "description", "tags", "schemaVersion", "version", "editable", "graphTooltip", "timezone",
    "refresh", "time", "links", "annotations", "templating", "panels",
}  # fmt: skip
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Plugins that every Grafana has.
TYPES = {"row", "stat", "timeseries", "table"}
OF_GRAFANA = {"__rate_interval", "__range"}


def load(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


every_board = pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)


def overlaps(boxes: list[dict[str, int]]) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Pairs of gridPos that cover a cell together."""
    return [
        (a, b)
        for at, a in enumerate(boxes)
        for b in boxes[at + 1 :]
        if a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]
    ]  # fmt: skip


@every_board
def test_a_board_has_what_grafana_asks_for(file: Path) -> None:
    board = load(file)
    assert board.keys() == OF_A_BOARD
    assert board["uid"] == f"jaxport-{file.stem}" and len(board["uid"]) <= 40
    # Of Grafana 10.4 and 11; later ones bring it up to theirs.
    assert board["schemaVersion"] == 39 and "id" not in board
    assert board["tags"] == ["jaxport"] and board["description"]


@every_board
def test_variables_come_before_what_uses_them(file: Path) -> None:
    variables = load(file)["templating"]["list"]
    assert variables[0]["name"] == "datasource" and variables[0]["type"] == "datasource"
    assert variables[0]["query"] == "prometheus"
    defined = ["datasource"]
    for variable in variables[1:]:
        assert variable["type"] == "query" and variable["datasource"] == SOURCE
        assert variable["definition"] == variable["query"]["query"]
        assert set(re.findall(r"\$(\w+)", variable["definition"])) <= set(defined)
        defined.append(variable["name"])
    assert len(defined) == len(set(defined))
    used = {name for query in queries(file) for name in re.findall(r"\$\{?(\w+)", query.expression)}
    assert used <= {*defined, *OF_GRAFANA}
    assert set(defined) <= used | {"datasource"}, "a variable that changes nothing"


@every_board
def test_panels_have_their_own_numbers_and_places(file: Path) -> None:
    every = list(panels(load(file)))
    ids = [panel["id"] for panel in every]
    assert len(ids) == len(set(ids)) and all(isinstance(number, int) and number > 0 for number in ids)
    boxes = [panel["gridPos"] for panel in every]
    assert all(
        box.keys() == {"x", "y", "w", "h"} and box["x"] + box["w"] <= 24 and min(box.values()) >= 0
        for box in boxes
    )
    assert all(box["w"] > 0 and box["h"] > 0 for box in boxes)
    assert overlaps(boxes) == []


def test_panels_that_lie_on_each_other_are_found() -> None:
    box = {"x": 0, "y": 0, "w": 8, "h": 8}
    assert overlaps([box, {**box, "x": 8}, {**box, "y": 8}]) == []
    assert len(overlaps([box, {**box, "x": 7, "y": 7}])) == 1


@every_board
def test_a_panel_has_a_question_a_unit_and_words(file: Path) -> None:
    for panel in panels(load(file)):
        assert panel["type"] in TYPES and panel["title"]
        if panel["type"] == "row":
            assert panel["panels"] == [] and not panel["collapsed"]
            continue
        assert panel["description"] and panel["datasource"] == SOURCE
        assert panel["targets"] and panel["fieldConfig"].keys() == {"defaults", "overrides"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE and target["expr"]
            assert target["instant"] == (panel["type"] != "timeseries") != target["range"]
        if panel["type"] != "table":
            assert panel["fieldConfig"]["defaults"]["unit"]


@every_board
def test_titles_are_not_given_twice(file: Path) -> None:
    titles = [panel["title"] for panel in panels(load(file))]
    assert len(titles) == len(set(titles))


@every_board
def test_a_legend_names_labels_that_the_result_has(file: Path) -> None:
    for query in queries(file):
        assert without_label(query) == set(), query.panel


def without_label(query: Query) -> set[str]:
    """Labels of the legend that the result does not have."""
    wanted = asked(query.concrete)
    has = known().labels[wanted.selectors[0].name] if wanted.by is None else wanted.by
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", query.legend)) - set(has)


def test_a_legend_that_names_another_label_is_found() -> None:
    assert without_label(Query("", "sum by (model) (jaxport_queue_depth)", "{{model}} {{pod}}")) == {"pod"}
    assert without_label(Query("", "jaxport_queue_depth", "{{signature}} {{pod}}")) == set()


@every_board
def test_rates_are_over_what_the_scrape_interval_allows(file: Path) -> None:
    """A fixed range shorter than two scrapes shows nothing; $__rate_interval knows the data source's interval."""
    for query in queries(file):
        assert set(re.findall(r"\[([^\]]*)\]", query.expression)) <= {"$__rate_interval", "$__range"}, (
            query.panel
        )
