"""Figures: what is counted, how it is shown, and what counting costs."""

import math
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from converters.errors import BundleError, BundleNotFound, GoldenMismatch
from serve_grpc.catalog import SERVING, Catalog, Choice, VersionInfo
from serve_grpc.errors import LoadRefused
from serve_grpc.gauges import CatalogGauges, DeviceMemory, ProcessGauges, VolumeSpace, device_memory
from serve_grpc.health import Health
from serve_grpc.histogram import Counts, HistogramFamily, added
from serve_grpc.metrics import Metrics
from serve_grpc.refusals import LABELS, reason_label
from tests.server_process import ROOT, ServerProcess, eventually

BOUNDS = (0.5, 1, 2)


def test_histograms_read_as_prometheus_clients_own() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    family = HistogramFamily("jaxport_x_seconds", "Help", ("model",), BOUNDS, ours)
    wanted = Histogram("jaxport_x_seconds", "Help", ("model",), buckets=BOUNDS, registry=theirs)
    values = [0.1, 0.5, 0.50001, 1.0, 1.5, 2.0, 99.0]  # bounds are inclusive; the last is above all
    family.labels("a").observe_all(values)
    family.labels("b").observe(1.25)
    for value in values:
        wanted.labels("a").observe(value)
    wanted.labels("b").observe(1.25)
    created = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == created
    assert 'jaxport_x_seconds_bucket{le="+Inf",model="a"} 7.0' in created


def test_no_observation_of_several_threads_is_lost() -> None:
    family = HistogramFamily("x", "Help", (), BOUNDS, CollectorRegistry())
    series = family.labels()

    def observe() -> None:
        for _ in range(2000):
            series.observe(1.0)
            series.observe_all([0.25, 3.0])

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert series.read() == Counts(BOUNDS, (8000, 8000, 0, 8000), 4 * 2000 * 4.25)


def test_quantiles_are_linear_within_a_bucket() -> None:
    counts = Counts(BOUNDS, (10, 0, 10, 0), 20.0)
    assert counts.quantile(0.25) == pytest.approx(0.25)
    assert counts.quantile(0.5) == pytest.approx(0.5)
    assert counts.quantile(0.75) == pytest.approx(1.5)
    assert counts.quantile(1.0) == pytest.approx(2.0)
    assert Counts(BOUNDS, (0, 0, 0, 5), 50.0).quantile(0.5) == 2
    assert math.isnan(Counts(BOUNDS, (0, 0, 0, 0), 0.0).quantile(0.5))
    assert added([]) is None
    assert added([counts, counts]) == Counts(BOUNDS, (20, 0, 20, 0), 40.0)


def test_the_documented_series_are_those_there_are(server: ServerProcess) -> None:
    server.predict("mlp", {"x": np.ones((1, 4), np.float32)})
    eventually(lambda: server.metric("jaxport_device_seconds_count", model="mlp") >= 1, "a counted run")
    rows = re.findall(
        r"^\| `(jaxport_\w+)` \| (\w+) \|([\w, ]*)\|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE
    )
    documented = {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in text_string_to_metric_families(server.get("/metrics")[1])
        if family.name.startswith("jaxport_")
    }
    assert documented.keys() == families.keys()
    for name, family in families.items():
        kind, labels = documented[name]
        assert kind == family.type
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == labels, name
    shed = re.findall(r"^\| `(\w+)` \| [A-Z_a-z ]+ \| ", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    refused = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    assert set(refused) == set(LABELS)
    assert {sample.labels["reason"] for sample in families["jaxport_shed_total"].samples} <= set(shed)


def test_what_a_version_failed_with_is_a_label_of_few_values() -> None:
    put_back = LoadRefused("version 2 was loaded again")
    put_back.__cause__ = GoldenMismatch("logits are off")
    labels = [
        reason_label(error)
        for error in (put_back, BundleError(), BundleNotFound(), LoadRefused(), ValueError())
    ]
    assert labels == ["goldens", "bundle", "bundle", "refused", "program"]


def test_ready_is_what_probes_are_told_and_a_limit_is_there_where_there_is_one() -> None:
    health, limit = Health(lambda *_: None), [1000]
    registry = CollectorRegistry()
    ProcessGauges(lambda: health.ready, registry, lambda: limit[0] if limit else None)
    value = registry.get_sample_value
    assert value("jaxport_ready") == 0 and value("jaxport_memory_limit_bytes") == 1000
    health.set_ready()
    limit.clear()
    assert value("jaxport_ready") == 1 and value("jaxport_memory_limit_bytes") is None
    health.leave()
    assert value("jaxport_ready") == 0


def test_the_space_of_the_models_volume_is_that_of_the_last_look(tmp_path: Path) -> None:
    registry, folder = CollectorRegistry(), tmp_path / "models"
    volume, value = VolumeSpace(folder, registry), registry.get_sample_value
    folder.mkdir()
    assert value("jaxport_volume_free_bytes") is value("jaxport_volume_size_bytes") is None
    volume.look()
    size = value("jaxport_volume_size_bytes")
    assert size == shutil.disk_usage(folder).total and 0 < (value("jaxport_volume_free_bytes") or 0) <= size
    folder.rmdir()
    assert value("jaxport_volume_size_bytes") == size, "who reads the series does not ask the volume"
    volume.look()
    assert value("jaxport_volume_free_bytes") is value("jaxport_volume_size_bytes") is None


def test_what_may_go_wrong_with_a_model_is_counted_from_0() -> None:
    """A series that begins with its first event has no increase."""
    metrics = Metrics()
    metrics.found("m", LABELS)
    value = metrics.registry.get_sample_value
    assert value("jaxport_policy_problems_total", {"model": "m"}) == 0
    for reason in LABELS:
        assert value("jaxport_load_failures_total", {"model": "m", "reason": reason}) == 0
    metrics.policy_problems.labels("m").inc()
    metrics.found("m", LABELS)
    assert value("jaxport_policy_problems_total", {"model": "m"}) == 1


def test_memory_states_and_labels_are_read_when_asked_for() -> None:
    class Gpu:
        def memory_stats(self) -> dict[str, int]:
            return {"bytes_in_use": 5, "peak_bytes_in_use": 7, "bytes_limit": 9, "num_allocs": 1}

    class Cpu:
        def memory_stats(self) -> None:
            return None

    registry, catalog = CollectorRegistry(), Catalog()
    DeviceMemory(Gpu(), registry)
    CatalogGauges(catalog, registry)
    catalog.put("m", VersionInfo(2, SERVING))
    catalog.choose("m", Choice("latest 1", 2, {"stable": 2}))
    value = registry.get_sample_value
    assert value("jaxport_device_memory_bytes", {"kind": "peak"}) == 7
    assert value("jaxport_version_state", {"model": "m", "version": "2", "state": "SERVING"}) == 1
    assert value("jaxport_label_version", {"model": "m", "label": "stable"}) == 2
    assert device_memory(Cpu()) == {}
    catalog.remove("m", 2)
    assert value("jaxport_version_state", {"model": "m", "version": "2", "state": "SERVING"}) is None
