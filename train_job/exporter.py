"""What a Prometheus can read of a run that is under way: how far it is, what it measured, how often it was started."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from train_job.errors import EnvironmentUnfit
from train_job.runs import saved_steps

# In a row of metrics.jsonl beside what was measured.
_NOT_MEASURED = ("step", "time")


class Exporter:
    """The series of one run, in a registry of its own. They are gauges: none of them begins anew with a process.

    starts: how often the run was started, this time included. planned: its steps.
    """

    def __init__(self, run: str, run_dir: Path, starts: int, planned: int) -> None:
        self.registry = CollectorRegistry()
        self._run = run
        self._step = self._gauge("jaxport_train_step", "Steps that are done or under way")
        self._step.set(math.nan)
        self._gauge("jaxport_train_steps_planned", "Steps that the run will have had").set(planned)
        self._gauge("jaxport_train_starts", "Times that the run was started").set(starts)
        self._gauge("jaxport_train_checkpoint_step", "The last step that is saved whole").set_function(
            lambda: _last_saved(run_dir)
        )
        self._gauge("jaxport_train_volume_free_bytes", "Free bytes on the run's volume").set_function(
            lambda: _space(run_dir)[0]
        )
        self._gauge("jaxport_train_volume_size_bytes", "Bytes that the run's volume has in all").set_function(
            lambda: _space(run_dir)[1]
        )
        self._measured = Gauge(
            "jaxport_train_measured", "The last row of metrics.jsonl", ("run", "name"), registry=self.registry
        )

    def step(self, done: int) -> None:
        """`done` steps are done or under way."""
        self._step.set(done)

    def measured(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl was written."""
        for name, value in row.items():
            if name not in _NOT_MEASURED:
                self._measured.labels(self._run, name).set(value)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, ("run",), registry=self.registry).labels(self._run)


@contextlib.contextmanager
def listening(exporter: Exporter, host: str, port: int) -> Iterator[None]:
    """Answers /metrics at host:port in threads of its own; says where. Raises EnvironmentUnfit."""
    try:
        server, thread = start_http_server(port, host, exporter.registry)
    except OSError as error:
        raise EnvironmentUnfit(
            f"--metrics-port {port}: cannot listen at {host} ({error.strerror or error}); choose another port or "
            "--metrics-host"
        ) from error
    try:
        print(f"metrics: http://{host}:{server.server_port}/metrics", flush=True)
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _last_saved(run_dir: Path) -> float:
    """NaN while nothing is saved, or where the volume cannot be read."""
    with contextlib.suppress(OSError):
        return max(saved_steps(run_dir), default=math.nan)
    return math.nan


def _space(folder: Path) -> tuple[float, float]:
    """Bytes of its file system: free, and in all. NaN where it cannot be asked."""
    with contextlib.suppress(OSError):
        found = shutil.disk_usage(folder)
        return found.free, found.total
    return math.nan, math.nan
