"""Figures: what is counted, how it is shown, and what counting costs."""

import math
import threading

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from serve_grpc.histogram import Counts, HistogramFamily, added

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
