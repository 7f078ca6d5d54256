"""Small charts as inline SVG, made on the server: no script, and colours by the page's style.

Each is an image to a screen reader, with a sentence that says what it shows; the figures are in tables beside it.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 360, 140
LEFT, RIGHT, TOP, BOTTOM = 8, 8, 14, 20
# More labels than this below the bars of a chart this wide run into each other.
MOST_LABELS = 7
CHARACTER = 6.5  # about the width of one


class Bar(NamedTuple):
    """label: below it. title: what a pointer that rests on it is told."""

    label: str
    title: str
    value: float


def bars(name: str, summary: str, data: Sequence[Bar], marks: Sequence[tuple[float, str]] = ()) -> str:
    """A histogram; `marks` are vertical lines at positions counted in bars from the left, in that order.

    A label that would run into the next one's is left out.
    """
    top = max((bar.value for bar in data), default=0) or 1
    step = (WIDTH - LEFT - RIGHT) / max(1, len(data))
    base = HEIGHT - BOTTOM
    every = -(-len(data) // MOST_LABELS)
    parts = [_baseline()]
    for at, bar in enumerate(data):
        x, height = LEFT + at * step, (base - TOP) * bar.value / top
        if bar.value:
            height = max(height, 1.5)  # one in a million is seen
            parts.append(
                f'<rect class="bar" x="{x + step * 0.08:.1f}" y="{base - height:.1f}" width="{step * 0.84:.1f}" '
                f'height="{height:.1f}"><title>{escape(bar.title)}</title></rect>'
            )
        if at % every == 0:
            parts.append(_text(x + step / 2, HEIGHT - 6, bar.label, "middle"))
    free = float(WIDTH)  # left of here no label stands yet
    for position, label in reversed(marks):
        x = LEFT + position * step
        parts.append(f'<path class="mark" d="M{x:.1f} {TOP - 4}V{base}"/>')
        long = len(label) * CHARACTER
        start = x + 3 if x + 3 + long <= free else x - 3 - long
        if start >= 0 and start + long <= free:
            parts.append(_text(start, TOP - 4, label, "start"))
            free = start - CHARACTER
    return _figure(name, summary, parts)


def lines(name: str, summary: str, series: Sequence[tuple[str, Sequence[float]]], span: str) -> str:
    """Values over time, the newest at the right, on one scale from 0. series: (CSS class, values). span: of the axis."""
    longest = max((len(values) for _, values in series), default=0)
    top = max((max(values, default=0) for _, values in series), default=0)
    base = HEIGHT - BOTTOM
    parts = [_baseline()]
    for css, values in series:
        step = (WIDTH - LEFT - RIGHT) / max(1, longest - 1)
        points = " ".join(
            f"{WIDTH - RIGHT - (len(values) - 1 - at) * step:.1f},{base - (base - TOP) * value / (top or 1):.1f}"
            for at, value in enumerate(values)
        )
        parts.append(f'<polyline class="line {css}" points="{points}"/>')
    parts.append(_text(LEFT, TOP - 4, f"{top:,.0f}" if top >= 10 else f"{top:.2g}", "start"))
    parts.append(_text(LEFT, HEIGHT - 6, span, "start"))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 6, "now", "end"))
    return _figure(name, summary, parts)


def _figure(name: str, summary: str, parts: Sequence[str]) -> str:
    return (
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{name}: {summary}")}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _baseline() -> str:
    return f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
