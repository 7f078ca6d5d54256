"""The rows of `metrics.jsonl`, for whoever reads what a run measured. Imports neither JAX nor a writer of events."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_job.errors import EnvironmentUnfit, describe_cause
from train_job.json_text import parse_json
from train_job.runs import METRICS

# What a row has beside the task's metrics, and `throughput`: no metric is called like one of these.
OF_THE_LOOP = frozenset(
    {
        "step",
        "time",
        "batch_loss",
        "grad_norm",
        "step_seconds",
        "input_wait_seconds",
        "lr",
        "skipped_steps",
        "checkpoint_seconds",
        "checkpoint_wait_seconds",
        "host_peak_memory_bytes",
        "peak_memory_bytes",
        "mfu",
        "goodput",
    }
)


def throughput(unit: str) -> str:
    """The name of the figure that counts a task's units."""
    return f"{unit}_per_s"


@dataclass(frozen=True)
class MetricsFile:
    """`metrics.jsonl` as it was found.

    content: its bytes. rows: of every line that is one, in order, each with the "step" it was measured after.
    damaged: how many other lines there are. torn: whether the last of the file is a row that was not written to its
    end, as a kill leaves it; not counted as damaged.
    """

    content: bytes
    rows: list[dict[str, Any]]
    damaged: int
    torn: bool


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl` that can be read, oldest first. Raises as `read_metrics_file`."""
    return read_metrics_file(run_dir).rows


def read_metrics_file(run_dir: Path) -> MetricsFile:
    """One without rows where there is none. Raises EnvironmentUnfit when the volume does not give it."""
    path = run_dir / METRICS
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise EnvironmentUnfit(
            f"{path}: cannot be read: {describe_cause(error)}; make it a file that this user can read, or move it away"
        ) from error
    *whole, last = content.split(b"\n")
    found = [_row(line) for line in (*whole, last) if line.strip()]
    torn = last.startswith(b"{") and _row(last) is None
    return MetricsFile(content, [row for row in found if row is not None], found.count(None) - torn, torn)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None
