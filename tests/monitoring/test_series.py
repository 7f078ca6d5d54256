"""Alerts and dashboards ask for series, labels and values that the code has: a rule on a name that is gone never fires."""

from pathlib import Path

import pytest

from tests.deploy.objects import of_kind, outputs
from tests.monitoring.known import SCRAPED, known, problems, works_in
from tests.monitoring.promql import NotUnderstood, asked
from tests.monitoring.source import DASHBOARDS, Alert, Query, alerts, queries

QUERIES = [(file, query) for file in DASHBOARDS for query in queries(file)]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_asks_for_what_there_is(alert: Alert) -> None:
    assert problems(alert.expression) == []


@pytest.mark.parametrize(
    ("file", "query"), QUERIES, ids=lambda each: getattr(each, "panel", None) or each.stem
)
def test_a_panel_asks_for_what_there_is(file: Path, query: Query) -> None:
    assert problems(query.concrete) == []


PLANTED = {
    "sum(rate(jaxport_requests_seconds_count[5m])) > 0": "no such series: jaxport_requests_seconds_count",
    "jaxport_shed > 0": "no such series: jaxport_shed",
    "jaxport_request_seconds > 1": "no such series: jaxport_request_seconds",
    'up == 1 and absent(jaxport_reddy{state="SERVING"})': "no such series: jaxport_reddy",
    'jaxport_queue_depth{modell="mlp"} > 0': "jaxport_queue_depth has no label modell",
    'jaxport_version_state{state="READY"} == 1': "jaxport_version_state: state is never 'READY'",
    'rate(jaxport_request_seconds_count{status=~"INTERNAL|UNAVAILBLE"}[5m]) > 0': "status is never 'UNAVAILBLE'",
    'increase(jaxport_load_failures_total{reason!="golden"}[5m]) > 0': "reason is never 'golden'",
    "sum by (modle) (jaxport_queue_depth) > 0": "no series of it has a label modle",
    "histogram_quantile(0.99, sum by (le) (jaxport_queue_depth))": "no series of it has a label le",
    "up / on (node) jaxport_compiles_total": "no series of it has a label node",
}


@pytest.mark.parametrize("expression", PLANTED)
def test_a_planted_name_that_is_not_there_is_found(expression: str) -> None:
    said = problems(expression)
    assert len(said) == 1 and PLANTED[expression] in said[0], said


@pytest.mark.parametrize(
    "expression", ["{job='x'}", 'sum("jaxport_shed_total")', "a{b}", "a{b=c}", "a ; b", "sum by (", ""]
)
def test_what_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(NotUnderstood):
        asked(expression)


def test_an_expression_is_read_to_its_end() -> None:
    text = """sum by (namespace, model) (rate(a_total{x="1", y!~'2|3'}[5m] offset 1h))
      # and a comment about b
      / on (namespace) group_left (z) c:d_e > bool 1.5e3 unless -f @ 7"""
    found = asked(text)
    assert [selector.name for selector in found.selectors] == ["a_total", "c:d_e", "f"]
    assert found.selectors[0].matchers == {"x": [("=", "1")], "y": [("!~", "2|3")]}
    assert (found.by, found.grouped) == ({"namespace", "model"}, {"namespace", "model", "z"})


def test_what_unless_takes_away_is_told_from_what_is_needed() -> None:
    found = asked("a unless (b or c) and d or (e unless on (x) max by (x) (f) == 1) + g unless h offset 5m")
    assert {selector.name for selector in found.selectors if selector.taken_away} == {"b", "c", "f", "h"}


def test_a_set_up_lacks_what_its_collectors_do_not_have() -> None:
    """Google's kube-state-metrics has nothing of Jobs, and without Kubernetes there is no Envoy."""
    assert works_in("up == 0") == {"operator", "GKE", "plain"}
    assert works_in("kube_job_failed > 0") == {"operator"}
    assert works_in("kube_pod_status_phase unless kube_job_failed") == {"operator", "GKE"}
    assert works_in("envoy_http_downstream_rq_total / jaxport_ready") == {"operator", "GKE"}
    assert works_in("jaxport_no_such_series") == set()


def test_the_names_of_scrape_jobs_are_those_of_the_objects_that_make_them() -> None:
    """A ServiceMonitor's job is its Service, a PodMonitoring's its own name, a PodMonitor's that after its namespace."""
    [alert] = [each for each in alerts() if each.name == "JaxportScrapeFailing"]
    [(op, pattern)] = asked(alert.expression).selectors[0].matchers["job"]
    assert op == "=~" and pattern.startswith("(.+/)?jaxport-(") and pattern.endswith(")")
    named_there = {f"jaxport-{each}" for each in pattern.partition("jaxport-(")[2][:-1].split("|")}
    made = set()
    for name, objects in outputs().items():
        if "optional" in name:
            made |= {each["metadata"]["name"] for each in of_kind(objects, "PodMonitoring", "PodMonitor")}
            monitors = of_kind(objects, "ServiceMonitor")
            made |= {s["metadata"]["name"] for s in of_kind(objects, "Service") for m in monitors
                     if m["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()}  # fmt: skip
    assert named_there == made


def test_every_series_of_the_server_is_known() -> None:
    """What the list above is made of: the registry of a server, with the labels that Prometheus adds."""
    labels = known().labels
    assert labels["jaxport_queue_seconds_bucket"] == {"model", "version", "le", *SCRAPED}
    assert labels["jaxport_device_memory_bytes"] == {"kind", *SCRAPED}
    assert {
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "jaxport_shed_total",
    } <= labels.keys()
