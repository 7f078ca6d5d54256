"""Series that are read from elsewhere when they are asked for: readiness, memory, volume, states and labels of versions."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from serve_grpc import host_memory
from serve_grpc.catalog import Catalog

# kind -> JAX's name for it.
KINDS = {"in_use": "bytes_in_use", "peak": "peak_bytes_in_use", "limit": "bytes_limit"}


def device_memory(handle: Any) -> dict[str, int]:
    """Bytes of a jax.Device by kind: in_use, peak, limit. Empty for a CPU, which keeps no account."""
    stats = handle.memory_stats() or {}
    return {kind: int(stats[name]) for kind, name in KINDS.items() if name in stats}


class ProcessGauges(Collector):
    """jaxport_ready, as /readyz answers, and jaxport_memory_limit_bytes, beside the client's process_* series."""

    def __init__(
        self,
        ready: Callable[[], bool],
        registry: CollectorRegistry,
        memory_limit: Callable[[], int | None] = host_memory.limit_bytes,
    ) -> None:
        self._ready, self._memory_limit = ready, memory_limit
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Its series now."""
        ready = GaugeMetricFamily("jaxport_ready", "1 while /readyz says ready")
        ready.add_metric([], int(self._ready()))
        limit = GaugeMetricFamily(
            "jaxport_memory_limit_bytes", "Host memory at which the kernel ends the process"
        )
        allowed = self._memory_limit()
        if allowed is not None:
            limit.add_metric([], allowed)
        return [ready, limit]


class VolumeSpace(Collector):
    """jaxport_volume_free_bytes and jaxport_volume_size_bytes of the file system that a folder is on.

    As it was when `look` was last called: by who reads the folder anyway, since a volume that does not answer would
    otherwise keep all the other series from being read.
    """

    def __init__(self, folder: Path, registry: CollectorRegistry) -> None:
        self._folder = folder
        self._space: tuple[int, int] | None = None  # free, size
        registry.register(self)

    def look(self) -> None:
        """Asks the file system. One that refuses is no harm to who calls: its series end."""
        try:
            found = shutil.disk_usage(self._folder)
        except OSError:
            self._space = None
        else:
            self._space = found.free, found.total

    def collect(self) -> Iterable[Metric]:
        """Its series now; without samples before the first look."""
        free = GaugeMetricFamily("jaxport_volume_free_bytes", "Free bytes on the volume of the models")
        size = GaugeMetricFamily(
            "jaxport_volume_size_bytes", "Bytes that the volume of the models has in all"
        )
        if self._space is not None:
            for family, value in zip((free, size), self._space, strict=True):
                family.add_metric([], value)
        return [free, size]


class DeviceMemory(Collector):
    """jaxport_device_memory_bytes, of the first device: programs for several have a part on it as on every other, and those
    for one lie there alone, so that no device has more in use or, of equal ones, less to spare.
    """

    def __init__(self, handle: Any, registry: CollectorRegistry) -> None:
        self._handle = handle
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Its series now."""
        family = GaugeMetricFamily(
            "jaxport_device_memory_bytes", "Memory of the device, where it keeps an account", labels=["kind"]
        )
        for kind, size in device_memory(self._handle).items():
            family.add_metric([kind], size)
        return [family]


class CatalogGauges(Collector):
    """jaxport_version_state and jaxport_label_version."""

    def __init__(self, catalog: Catalog, registry: CollectorRegistry) -> None:
        self._catalog = catalog
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Their series now: a version that has gone has none."""
        states = GaugeMetricFamily(
            "jaxport_version_state", "1 for the state a version is in", labels=["model", "version", "state"]
        )
        labels = GaugeMetricFamily(
            "jaxport_label_version", "The version that a label stands for", labels=["model", "label"]
        )
        for model, versions in self._catalog.models().items():
            for info in versions:
                states.add_metric([model, str(info.version), info.state], 1)
            for label, version in sorted(self._catalog.choice(model).labels.items()):
                labels.add_metric([model, label], version)
        return [states, labels]
