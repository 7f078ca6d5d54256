"""The series there are, and what their labels can say: read from the code of the server, else written down here."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry

from serve_grpc import catalog, refusals
from serve_grpc.catalog import Catalog
from serve_grpc.errors import Code
from serve_grpc.gauges import KINDS, CatalogGauges, DeviceMemory, ProcessGauges, VolumeSpace
from serve_grpc.metrics import Metrics
from tests.deploy.objects import ROOT
from tests.monitoring.promql import Asked, asked
from train_job.exporter import Exporter

# What the operator's and Google's collectors put on every series of ours. job differs between the two.
SCRAPED = {"namespace", "pod", "container", "instance", "job"}
SUFFIXES = {"histogram": {"_bucket": {"le"}, "_sum": set(), "_count": set()}, "counter": {"_total": set()}}
OF_PROMETHEUS = {"up": SCRAPED}
# Of Envoy 1.40 on its port 8502. A test of the front holds them to what Envoy answers with the configuration of deploy/.
OF_ENVOY: dict[str, set[str]] = {
    "envoy_cluster_upstream_cx_connect_fail": {"envoy_cluster_name"},
    "envoy_http_downstream_rq_total": {"envoy_http_conn_manager_prefix"},
    "envoy_http_downstream_cx_active": {"envoy_http_conn_manager_prefix"},
    "envoy_listener_downstream_global_cx_overflow": {"envoy_listener_address"},
    "envoy_listener_downstream_cx_overload_reject": {"envoy_listener_address"},
    "envoy_overload_envoy_overload_actions_reset_high_memory_stream_active": set(),
    "envoy_overload_envoy_overload_actions_stop_accepting_requests_active": set(),
    "envoy_overload_envoy_resource_monitors_fixed_heap_pressure": set(),
    "envoy_server_days_until_first_cert_expiring": set(),
}
VALUES_OF_ENVOY = {"envoy_cluster_name": {"model"}, "envoy_http_conn_manager_prefix": {"grpc"}}
# kube-state-metrics 2.x, docs/metrics/workload in its repository.
OF_KUBERNETES = {
    "kube_job_failed": {"namespace", "job_name", "condition"},
    "kube_pod_status_phase": {"namespace", "pod", "phase", "uid"},
}
VALUES_OF_KUBERNETES = {
    "condition": {"true", "false", "unknown"},
    "phase": {"Pending", "Running", "Succeeded", "Failed", "Unknown"},
}
# What Google's managed kube-state-metrics has of pods, Deployments and autoscalers, with the components that
# terraform/cluster.tf turns on: "Collect and view kube state metrics" in the documentation of GKE. Its series carry the
# namespace of what they are about. There are none of Jobs.
OF_GOOGLE = {
    "kube_pod_container_status_ready",
    "kube_pod_container_status_waiting_reason",
    "kube_pod_status_phase",
    "kube_pod_status_unschedulable",
    "kube_deployment_spec_replicas",
    "kube_deployment_status_replicas_available",
    "kube_deployment_status_replicas_updated",
    "kube_horizontalpodautoscaler_spec_max_replicas",
    "kube_horizontalpodautoscaler_spec_min_replicas",
    "kube_horizontalpodautoscaler_spec_target_metric",
    "kube_horizontalpodautoscaler_status_condition",
    "kube_horizontalpodautoscaler_status_current_replicas",
    "kube_horizontalpodautoscaler_status_desired_replicas",
}


@dataclass(frozen=True)
class Known:
    """labels: name of a series -> its labels. values: (name, label) -> all that it can say, where that is a short list."""

    labels: Mapping[str, Collection[str]]
    values: Mapping[tuple[str, str], Collection[str]]


@cache
def known() -> Known:
    """What an expression may ask for."""
    labels: dict[str, Collection[str]] = {**OF_PROMETHEUS, **OF_KUBERNETES}
    for name, own in (*_of_server(), *_of_training(), *OF_ENVOY.items()):
        labels[name] = own | SCRAPED
    values = {(name, label): some for label, some in VALUES_OF_KUBERNETES.items() for name in OF_KUBERNETES}
    values |= {(name, label): some for label, some in VALUES_OF_ENVOY.items() for name in OF_ENVOY}
    values |= {
        ("jaxport_request_seconds_count", "status"): {code.name for code in Code},
        ("jaxport_version_state", "state"): {
            catalog.LOADING,
            catalog.SERVING,
            catalog.DRAINING,
            catalog.FAILED,
        },
        ("jaxport_load_failures_total", "reason"): set(refusals.LABELS),
        ("jaxport_shed_total", "reason"): _shed_reasons(),
        ("jaxport_device_memory_bytes", "kind"): set(KINDS),
    }
    return Known(labels, values)


@cache
def set_ups() -> Mapping[str, Collection[str]]:
    """The columns of the table in docs/monitoring.md: set-up -> the series that a Prometheus has there.

    Plain is one that reads servers and runs by itself, without Kubernetes and so without Envoy.
    """
    plain = {*OF_PROMETHEUS, *(name for name, _ in (*_of_server(), *_of_training()))}
    scraped = plain | OF_ENVOY.keys()
    return {"operator": scraped | OF_KUBERNETES.keys(), "GKE": scraped | OF_GOOGLE, "plain": plain}


def works_in(expression: str) -> set[str]:
    """The set-ups that have every series an expression needs: all but those it only takes away by `unless`."""
    wanted = asked(expression)
    needed = {selector.name for selector in wanted.selectors if not selector.taken_away}
    return {name for name, there in set_ups().items() if needed <= set(there)}


def problems(expression: str) -> list[str]:
    """What an expression asks for that is not there. Raises NotUnderstood."""
    return list(_problems(asked(expression)))


def _problems(wanted: Asked) -> Iterator[str]:
    there = known()
    for selector in wanted.selectors:
        labels = there.labels.get(selector.name)
        if labels is None:
            yield f"no such series: {selector.name}"
            continue
        for label, matchers in selector.matchers.items():
            if label not in labels:
                yield f"{selector.name} has no label {label}, but {', '.join(sorted(labels))}"
            values = there.values.get((selector.name, label))
            if values is not None:
                for value in (each for op, text in matchers for each in _alternatives(op, text)):
                    if value not in values:
                        yield f"{selector.name}: {label} is never {value!r}, but {', '.join(sorted(values))}"
    every = {label for selector in wanted.selectors for label in there.labels.get(selector.name, ())}
    for label in sorted(wanted.grouped - every):
        yield f"no series of it has a label {label}"


def _alternatives(op: str, text: str) -> list[str]:
    """The values that a matcher names; those of a variable are the viewer's."""
    if "$" in text:
        return []
    return text.split("|") if op.endswith("~") else [text]


class _NoDevice:
    def memory_stats(self) -> None:
        return None


@cache
def _of_server() -> list[tuple[str, set[str]]]:
    metrics = Metrics()
    ProcessGauges(bool, metrics.registry)
    CatalogGauges(Catalog(), metrics.registry)
    DeviceMemory(_NoDevice(), metrics.registry)
    VolumeSpace(Path(), metrics.registry)
    return list(names_in(metrics.registry))


def _of_training() -> list[tuple[str, set[str]]]:
    return list(names_in(Exporter("run", Path(), starts=1, planned=1).registry))


def names_in(registry: CollectorRegistry) -> Iterator[tuple[str, set[str]]]:
    """(name as it is asked for, its own labels) of every series of a registry, which may have no sample yet."""
    for collector in registry._collector_to_names:
        for family in collector.collect():
            # Of ours and the client's alike: the one keeps it in the collector, the other in the family.
            own = set(getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ()))
            for suffix, added in SUFFIXES.get(family.type, {"": set[str]()}).items():
                yield family.name + suffix, own | added


@cache
def _shed_reasons() -> set[str]:
    """Of the table in docs/metrics.md, which a test of the server holds to what it counts."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    return set(re.findall(r"^\| `(\w+)` \| [A-Z_a-z ]+ \| ", text, re.MULTILINE))
