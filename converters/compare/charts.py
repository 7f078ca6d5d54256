"""Horizontal bars as inline SVG: no script, and colours by the page's style.

Each is an image to a screen reader, with a sentence that says what it shows; the figures are in a table beside it.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, ROW = 380, 30
NAME, VALUE = 96, 92  # room for the names at the left, and for the figures at the right
BAR = 14


class Bar(NamedTuple):
    """value: its length. low, high: ends of the line across it, or None. text: behind it. first: whether it is what the
    others stand beside.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    text: str
    first: bool = False


def bars(title: str, summary: str, data: Sequence[Bar]) -> str:
    """A figure on a scale from 0 to the largest end of them."""
    top = max((max(bar.value, bar.high or 0) for bar in data), default=0) or 1
    room = WIDTH - NAME - VALUE
    height = ROW * len(data) + 6
    parts = [f'<path class="axis" d="M{NAME} 2V{height - 2}"/>']
    for at, bar in enumerate(data):
        middle = at * ROW + ROW / 2 + 3
        parts.append(_text(NAME - 8, middle + 4, bar.name, "end"))
        kind = "bar first" if bar.first else "bar"
        length = max(room * bar.value / top, 1)
        parts.append(
            f'<rect class="{kind}" x="{NAME}" y="{middle - BAR / 2:.1f}" width="{length:.1f}" height="{BAR}" rx="2"/>'
        )
        if bar.low is not None and bar.high is not None:
            left, right = NAME + room * bar.low / top, NAME + room * bar.high / top
            parts.append(
                f'<path class="spread" d="M{left:.1f} {middle:.1f}H{right:.1f}M{left:.1f} {middle - 4:.1f}v8'
                f'M{right:.1f} {middle - 4:.1f}v8"/>'
            )
        parts.append(_text(WIDTH - 4, middle + 4, bar.text, "end"))
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(f"{title}: {summary}")}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
