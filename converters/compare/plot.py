"""A comparison as a picture. matplotlib is imported when one is drawn: a machine that serves has none."""

import io

from converters.compare.figures import Comparison
from converters.compare.machine import sentence

INK = "#24292f"
COLORS = ("#57606a", "#1f6feb", "#1a7f37", "#c2410c", "#8250df")
MARKERS = ("o", "s", "^", "D", "v")
DODGE = 0.09  # of the way to the next power of two


def draw(found: Comparison) -> bytes:
    """PNG: rows per second, and latency with its spread, over the batch. Raises ModuleNotFoundError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{found.model} version {found.version}: ways to run it", fontsize=12, color=INK)
    rate, latency = figure.subplots(1, 2)
    batches = list(found.batches)
    for at, (way, color, marker) in enumerate(zip(found.ran, COLORS, MARKERS, strict=False)):
        medians = [cell.median_ms for cell in way.cells]
        spread = [
            [cell.median_ms - cell.low_ms for cell in way.cells],
            [cell.high_ms - cell.median_ms for cell in way.cells],
        ]
        look = {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.6, "label": way.name}
        rate.plot(batches, [cell.rows_per_s for cell in way.cells], **look)
        # Side by side, so that no line of a spread hides another.
        beside = [batch * 2 ** (DODGE * (at - (len(found.ran) - 1) / 2)) for batch in batches]
        latency.errorbar(beside, medians, yerr=spread, capsize=3, **look)
    rate.set(title="throughput", ylabel="rows/s")
    rate.set_ylim(bottom=0)
    rate.yaxis.set_major_formatter("{x:,.0f}")
    latency.set(title="latency, median and 10-90%", ylabel="milliseconds", yscale="log")
    latency.yaxis.set_major_formatter("{x:g}")
    for axes in (rate, latency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.minorticks_off()
        axes.set_xlabel("batch")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    rate.legend(frameon=False)
    figure.supxlabel(sentence(found.machine), fontsize=7, color=INK, wrap=True)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()
