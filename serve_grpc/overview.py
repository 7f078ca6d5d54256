"""Everything the status page shows, as plain data: /status.json is this, and the page at / is made of it.

Names and meaning of the fields are kept; new ones may come. Times are ISO 8601 in UTC, durations say their unit.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from converters.manifest import TensorInfo
from converters.window import window_of
from serve_grpc.catalog import Catalog, LaneInfo, SignatureInfo, VersionInfo
from serve_grpc.histogram import Counts, HistogramFamily, added
from serve_grpc.history import SAMPLE_SECONDS, History
from serve_grpc.metrics import Metrics


@dataclass(frozen=True)
class ServerFacts:
    """What does not change while a server runs. reason: why this transport. cache: the folder of this device's
    compile cache, which may not be there.
    """

    transport: str
    reason: str
    platform: str
    device_kind: str
    devices: int
    jax_version: str
    cache: Path
    started: float  # seconds since the epoch


class Overview:
    """Reads what the server knows. Any thread; nothing is kept between two readings."""

    def __init__(
        self,
        facts: ServerFacts,
        catalog: Catalog,
        metrics: Metrics,
        history: History,
        ready: Callable[[], bool],
        waiting: Callable[[], Sequence[str]],
        memory: Callable[[], Mapping[str, int]],
    ) -> None:
        self._facts = facts
        self._memory = memory
        self._catalog = catalog
        self._metrics = metrics
        self._history = history
        self._ready = ready
        self._waiting = waiting

    def read(self) -> dict[str, Any]:
        """The facts of this moment, as JSON has them: no NaN."""
        figures = _Figures(self._metrics)
        return {
            "server": self._server(),
            "traffic": self._traffic(),
            "models": [
                self._model(name, versions, figures) for name, versions in self._catalog.noticed().items()
            ],
        }

    def _server(self) -> dict[str, Any]:
        facts, metrics = self._facts, self._metrics
        return {
            "ready": self._ready(),
            "waiting_for": list(self._waiting()),
            "version": package_version("jaxport"),
            "jax": facts.jax_version,
            "device": {
                "platform": facts.platform,
                "kind": facts.device_kind,
                "count": facts.devices,
                "memory_bytes": dict(self._memory()),
            },
            "resident_bytes": _resident(),
            "transport": {"name": facts.transport, "reason": facts.reason},
            "started_at": _iso(facts.started),
            "uptime_seconds": round(time.time() - facts.started),
            "compile_cache": {
                "folder": str(facts.cache),
                "present": facts.cache.is_dir(),
                "misses": int(_value(metrics.cache_misses)),
            },
            "compiles_after_ready": int(_value(metrics.compiles_after_ready)),
        }

    def _traffic(self) -> dict[str, Any]:
        samples = self._history.samples()
        return {
            "interval_seconds": SAMPLE_SECONDS,
            "answered_per_second": [round(sample.answered, 1) for sample in samples],
            "refused_per_second": [round(sample.refused, 1) for sample in samples],
            "rows_waiting": [sample.waiting for sample in samples],
        }

    def _model(self, name: str, versions: Sequence[VersionInfo], figures: "_Figures") -> dict[str, Any]:
        choice = self._catalog.choice(name)
        return {
            "name": name,
            "policy": choice.policy,
            "default": choice.default,
            "labels": dict(sorted(choice.labels.items())),
            "pending_labels": dict(sorted(choice.pending.items())),
            "problems": list(choice.problems),
            "shed": figures.shed.get(name, {}),
            "versions": [self._version(name, info, figures) for info in versions],
        }

    def _version(self, model: str, info: VersionInfo, figures: "_Figures") -> dict[str, Any]:
        key = (model, str(info.version))
        totals = self._metrics.run_totals(model, info.version).by_bucket if info.signatures else {}
        return {
            "version": info.version,
            "state": info.state,
            "reason": info.reason,
            "labels": list(info.labels),
            "jaxlib": info.jaxlib or None,
            **_window(info),
            "window_days_left": _days_left(info.window_ends),
            "proven_at": _iso(info.proven_at) if info.proven_at else None,
            "requests": figures.requests.get(key, {}),
            "stages": {name: stages[key] for name, stages in figures.stages.items() if key in stages},
            "batch_rows": figures.batch_rows.get(key),
            "padding_rows": figures.padding.get(key, 0),
            "padding_positions": figures.padding_positions.get(key),
            "runs_by_bucket": {str(bucket): each.runs for bucket, each in totals.items()},
            "signatures": [
                _signature(each, figures.depths.get((*key, each.name), 0)) for each in info.signatures
            ],
        }


class _Figures:
    """The series of all versions, read once: (model, version) -> figures."""

    def __init__(self, metrics: Metrics) -> None:
        self.requests: dict[tuple[str, str], dict[str, int]] = {}
        answered: dict[tuple[str, str], list[Counts]] = {}
        for labels, counts in metrics.request_seconds.read():
            key = (labels["model"], labels["version"])
            by_status = self.requests.setdefault(key, {})
            by_status[labels["status"]] = by_status.get(labels["status"], 0) + counts.observations
            if labels["status"] == "OK":
                answered.setdefault(key, []).append(counts)
        self.stages = {
            "total": {key: _seconds(sum_) for key, each in answered.items() if (sum_ := added(each))},
            "queue": _by_version(metrics.queue_seconds, _seconds),
            "assemble": _by_version(metrics.assemble_seconds, _seconds),
            "device": _by_version(metrics.device_seconds, _seconds),
            "encode": _by_version(metrics.encode_seconds, _seconds),
        }
        self.batch_rows = _by_version(metrics.batch_rows, _rows)
        self.padding, self.padding_positions = (
            {(labels["model"], labels["version"]): int(value) for labels, value in _samples(family, "_total")}
            for family in (metrics.padding_rows, metrics.padding_positions)
        )
        self.depths = dict(metrics.waiting())
        self.shed: dict[str, dict[str, int]] = {}
        for labels, value in _samples(metrics.shed, "_total"):
            if value:
                self.shed.setdefault(labels["model"], {})[labels["reason"]] = int(value)


def _by_version(
    family: HistogramFamily, make: Callable[[Counts], dict[str, Any]]
) -> dict[tuple[str, str], dict[str, Any]]:
    return {(labels["model"], labels["version"]): make(counts) for labels, counts in family.read()}


def _seconds(counts: Counts) -> dict[str, Any]:
    """Milliseconds of a stage; None where nothing was seen. buckets: [upper bound or None, how many]."""
    seen = counts.observations

    def ms(seconds: float) -> float | None:
        return float(f"{seconds * 1e3:.4g}") if seen else None

    return {
        "count": seen,
        "mean_ms": ms(counts.sum / seen) if seen else None,
        "p50_ms": ms(counts.quantile(0.5)),
        "p90_ms": ms(counts.quantile(0.9)),
        "p99_ms": ms(counts.quantile(0.99)),
        "buckets_ms": [
            [float(f"{bound * 1e3:.6g}"), count]
            for bound, count in zip(counts.bounds, counts.counts, strict=False)
        ]
        + [[None, counts.counts[-1]]],
    }


def _rows(counts: Counts) -> dict[str, Any]:
    """Rows of the runs. buckets: [upper bound or None, how many]."""
    seen = counts.observations
    return {
        "count": seen,
        "rows": int(counts.sum),
        "mean": float(f"{counts.sum / seen:.4g}") if seen else None,
        "buckets": [[int(b), n] for b, n in zip(counts.bounds, counts.counts, strict=False)]
        + [[None, counts.counts[-1]]],
    }


def _signature(info: SignatureInfo, waiting: int) -> dict[str, Any]:
    return {
        "name": info.name,
        "inputs": [_tensor(tensor) for tensor in info.inputs],
        "outputs": [_tensor(tensor) for tensor in info.outputs],
        "rows_waiting": waiting,
        "buckets": _buckets(info),
        "lanes": [
            {"length": lane.length, "sizes": dict(lane.sizes), "buckets": _buckets(lane)}
            for lane in info.lanes
        ],
    }


def _buckets(of: SignatureInfo | LaneInfo) -> list[dict[str, Any]]:
    return [
        {
            "rows": bucket,
            "ms": float(f"{seconds * 1e3:.4g}"),
            "rows_per_second": round(bucket / seconds) if seconds else None,
            "golden_error": _error(of.golden_errors.get(bucket)),
        }
        for bucket, seconds in of.bucket_seconds.items()
    ]


def _tensor(tensor: TensorInfo) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}


def _error(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _window(info: VersionInfo) -> dict[str, Any]:
    """may_refuse: the releases known here that are promised nothing."""
    if not (info.jaxlib and info.window_ends):
        return {"window_begins": None, "window_ends": info.window_ends or None, "may_refuse": []}
    window = window_of(info.jaxlib, info.window_ends)
    return {
        "window_begins": window.begins.isoformat(),
        "window_ends": info.window_ends,
        "may_refuse": list(window.may_refuse),
    }


def _days_left(window_ends: str) -> int | None:
    if not window_ends:
        return None
    return (date.fromisoformat(window_ends[:10]) - datetime.now(UTC).date()).days


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _resident() -> int | None:
    """Bytes of memory of this process; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _samples(family: Any, suffix: str) -> list[tuple[Mapping[str, str], float]]:
    """(labels, value) of a counter's or gauge's series."""
    return [
        (sample.labels, sample.value)
        for metric in family.collect()
        for sample in metric.samples
        if sample.name.endswith(suffix)
    ]


def _value(family: Any) -> float:
    return sum(value for _, value in _samples(family, "_total"))
