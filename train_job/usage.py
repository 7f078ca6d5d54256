"""What a run makes of its devices and of its time: figures of process 0 for a row of `metrics.jsonl`."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import jax

from train_job.flops import peak_flops
from train_job.mesh import Layout
from train_job.settings import TrainSettings
from train_job.steps import Batch, model_flops


class Usage:
    """step_flops: what the model needs for a step. peak: operations per second of all devices; None where not known.

    began: when the run was first started, in seconds since 1970. rows: those of earlier starts that count.
    """

    def __init__(
        self, step_flops: int, peak: float | None, began: float, rows: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self._step_flops, self._peak, self._began = step_flops, peak, began
        self._step, self._in_steps = 0, 0.0
        self._all_timed = True
        for row in rows:
            seconds = row.get("step_seconds")
            if isinstance(seconds, float):
                self._count(row["step"], seconds)
            else:  # written by a jaxport that did not measure it, or damaged
                self._all_timed = False

    @classmethod
    def of_run(
        cls,
        settings: TrainSettings,
        layout: Layout,
        batch: Batch,
        created_at: str,
        rows: Iterable[Mapping[str, Any]],
    ) -> Usage:
        """created_at: of the run's record."""
        peak = peak_flops(
            jax.devices()[0].device_kind,
            settings.hyper.compute_dtype,
            jax.config.jax_default_matmul_precision,
        )
        began = datetime.fromisoformat(created_at).timestamp()
        if peak is None:
            return cls(0, None, began, rows)
        return cls(model_flops(settings.preset, batch), peak * layout.mesh.size, began, rows)

    def figures(self, step: int, step_seconds: float) -> dict[str, float]:
        """After the interval that ends at `step`. Without what cannot be known here.

        mfu: see `train_job.flops`. goodput: the share of the time since the run was first started that went into steps
        that it still has; not into waiting for a start, compiling, evaluating, or steps that were lost with a process.
        peak_memory_bytes: the most that any device of this process has held since the process began.
        host_peak_memory_bytes: the most that this process has held beside them.
        """
        self._count(step, step_seconds)
        kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found: dict[str, float] = {"host_peak_memory_bytes": kibibytes * 1024}
        if self._peak is not None:
            found["mfu"] = self._step_flops / step_seconds / self._peak
        if self._all_timed:
            found["goodput"] = min(1.0, self._in_steps / max(time.time() - self._began, 1e-9))
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
        known = [peak for peak in peaks if peak is not None]
        return {**found, "peak_memory_bytes": max(known)} if known else found

    def _count(self, step: int, step_seconds: float) -> None:
        """A start that was preempted has left steps without a row: they are taken to be as long as those after them."""
        self._in_steps += (step - self._step) * step_seconds
        self._step = step
