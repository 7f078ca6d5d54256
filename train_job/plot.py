"""The picture of a run: its metrics over the steps, train and validation, with the baseline to beat."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from train_job.presets import Baseline
from train_job.runs import PLOT, write_atomically

_TITLES = {"loss": "loss (nats)", "bits_per_byte": "bits per byte", "accuracy": "accuracy"}
_TRAIN, _VAL, _BASE, _INK = "#9aa5b1", "#1f6feb", "#c2410c", "#24292f"
_PANEL_INCHES = (7.2, 4.4)
_DPI = 144


def draw_plot(
    run_dir: Path, title: str, rows: Sequence[Mapping[str, Any]], baselines: Mapping[str, Baseline]
) -> Path:
    """Writes `loss.png` from the rows of `metrics.jsonl`. Raises StorageFailed."""
    families = _families(rows)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(families), height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, color=_INK)
    for axes, family in zip(figure.subplots(1, len(families), squeeze=False)[0], families, strict=True):
        _panel(axes, family, rows, baselines.get(f"val_{family}"))
    image = io.BytesIO()
    figure.savefig(image, format="png")
    write_atomically(run_dir / PLOT, image.getvalue())
    return run_dir / PLOT


def _families(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics measured on both parts; the loss gives way to bits per byte, the same curve in other units."""
    names = {name.removeprefix("val_") for row in rows for name in row if name.startswith("val_")}
    names.discard("loss" if "bits_per_byte" in names else "")
    return sorted(names, reverse=True) or ["loss"]


def _panel(axes: Axes, family: str, rows: Sequence[Mapping[str, Any]], baseline: Baseline | None) -> None:
    for part, label, color, width in (("train", "training", _TRAIN, 1.6), ("val", "validation", _VAL, 2.2)):
        points = [(row["step"], row[f"{part}_{family}"]) for row in rows if f"{part}_{family}" in row]
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, label=label, color=color, linewidth=width, marker="o", markersize=3)
            if part == "val":
                _annotate(axes, steps[-1], values[-1])
    if baseline is not None:
        name = f"{baseline.name} ({baseline.value:.3f})"
        axes.axhline(baseline.value, label=name, color=_BASE, linewidth=1.4, linestyle=(0, (5, 3)))
    axes.set_xlabel("step")
    axes.set_ylabel(_TITLES.get(family, family))
    axes.grid(alpha=0.25)
    axes.margins(x=0.03, y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _annotate(axes: Axes, step: float, value: float) -> None:
    axes.annotate(
        f"{value:.3f}",
        (step, value),
        xytext=(0, 7),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=_VAL,
        fontweight="bold",
    )
