"""The rows of `metrics.jsonl`, for whoever reads what a run measured. Imports neither JAX nor a writer of events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from train_job.runs import METRICS


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`, oldest first, each with the "step" it was measured after.

    A line that is none ends them: lines are appended whole and in order, so that nothing after a torn one counts.
    """
    path = run_dir / METRICS
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            break
        rows.append(row)
    return rows
