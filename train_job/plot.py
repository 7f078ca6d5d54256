"""The picture of a run over its steps: metrics, train and validation, with the baseline to beat; below, how it went."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_job.presets import Baseline
from train_job.runs import PLOT, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {"loss": "loss (nats)", "bits_per_byte": "bits per byte", "accuracy": "accuracy"}
_LABELS = {"mfu": "MFU", "grad_norm": "gradient norm"}  # below the metrics, beside throughput
_TRAIN, _VAL, _BASE, _INK = "#9aa5b1", "#1f6feb", "#c2410c", "#24292f"
_PANEL_INCHES = (7.2, 4.4)
_BESIDE_HEIGHT = 0.55  # of the panels above
_DPI = 144


def draw_plot(
    run_dir: Path, title: str, rows: Sequence[Mapping[str, Any]], baselines: Mapping[str, Baseline]
) -> Path:
    """Writes `loss.png` from the rows of `metrics.jsonl`. Raises StorageFailed."""
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,
    )  # over a second to import, for the end of a run alone
    from matplotlib.figure import Figure

    families, beside = _families(rows), _beside(rows)
    width, height = _PANEL_INCHES
    size = (width * len(families), height * (1 + _BESIDE_HEIGHT * bool(beside)))
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, color=_INK, parse_math=False)
    # Both rows are as wide as the other, whatever number of panels each has.
    above = [family for family in families for _ in beside or [""]]
    below = [name for name in beside for _ in families]
    mosaic: Any = [above, below] if beside else [above]
    panels = figure.subplot_mosaic(mosaic, height_ratios=[1, _BESIDE_HEIGHT][: len(mosaic)])
    for family in families:
        _panel(panels[family], family, rows, baselines.get(f"val_{family}"))
    for name in beside:
        _curve(panels[name], name, rows)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    write_atomically(run_dir / PLOT, image.getvalue())
    return run_dir / PLOT


def _families(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics measured on both parts; the loss gives way to bits per byte, the same curve in other units."""
    names = {name.removeprefix("val_") for row in rows for name in row if name.startswith("val_")}
    names.discard("loss" if "bits_per_byte" in names else "")
    return sorted(names, reverse=True) or ["loss"]


def _beside(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Throughput, what it makes of the devices, and the gradient's norm, as far as they were measured."""
    names = {name for row in rows for name in row}
    return [*sorted(name for name in names if name.endswith("_per_s")), *(n for n in _LABELS if n in names)]


def _curve(axes: Axes, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import EngFormatter, PercentFormatter

    steps, values = zip(*((row["step"], row[name]) for row in rows if name in row), strict=True)
    axes.plot(steps, values, color=_INK, linewidth=1.4, marker="o", markersize=2)
    axes.set_ylabel(_LABELS.get(name) or f"{name.removesuffix('_per_s')}/s")
    axes.set_ylim(0, 1.1 * max(values) or 1)
    if name == "mfu":
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    elif name.endswith("_per_s"):
        axes.yaxis.set_major_formatter(EngFormatter())
    _finish(axes)


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
    axes.set_ylabel(_TITLES.get(family, family))
    axes.margins(y=0.12)
    _finish(axes)
    axes.legend(frameon=False)


def _finish(axes: Axes) -> None:
    axes.set_xlabel("step")
    axes.margins(x=0.03)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


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
