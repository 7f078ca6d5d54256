"""The figures as bars: a row per concurrency, requests/s on the left, CPU a request on the right."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.programs import TITLES
from benchmarks.peers.report import whole

OURS, PEERS = "#1f6f8b", "#b8b8b8"
PANELS = (("requests_per_s", "requests/s"), ("cpu_us", "CPU µs a request"))


def draw(cells: Mapping[str, Mapping[str, Any]], model: str, path: Path) -> None:
    """Writes an SVG. Bars are medians of rounds, whiskers their range; the axis is logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": model, "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(len(cells), 2, squeeze=False, figsize=(10, 1.2 + 3.4 * len(cells)))
    for line, (concurrency, cell) in zip(axes, cells.items(), strict=True):
        names = sorted(
            (name for name, entry in cell["servers"].items() if whole(entry)),
            key=lambda name: statistics.median(w["requests_per_s"] for w in cell["servers"][name]["windows"]),
        )
        for axis, (key, words) in zip(line, PANELS, strict=True):
            values = [[w[key] for w in cell["servers"][name]["windows"]] for name in names]
            _bars(axis, names, values)
            axis.set_title(f"{words}, {concurrency} in flight", fontsize=9)
    figure.suptitle(TITLES[model].replace("`", ""), fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _bars(axis: Any, names: Sequence[str], values: Sequence[Sequence[float]]) -> None:
    middles = [statistics.median(v) for v in values]
    reach = [[m - min(v) for m, v in zip(middles, values, strict=True)],
             [max(v) - m for m, v in zip(middles, values, strict=True)]]  # fmt: skip
    colours = [OURS if name.startswith("jaxport") else PEERS for name in names]
    bars = axis.barh(names, middles, xerr=reach, color=colours, error_kw={"lw": 0.8, "capsize": 2})
    axis.bar_label(bars, [f" {m:,.0f}" for m in middles], fontsize=7, label_type="edge")
    axis.set_xscale("log")
    axis.margins(x=0.15)
    axis.tick_params(labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
