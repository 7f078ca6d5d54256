"""A comparison as one page of HTML that loads nothing from elsewhere and runs no script."""

from collections.abc import Iterator, Sequence
from html import escape

from converters.compare.charts import Bar, bars
from converters.compare.figures import Cell, Comparison, WayFigures
from converters.compare.machine import sentence
from converters.compare.table import about, bytes_text, row, short

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1d1f; --soft: #5c6068; --line: #d9dce1; --panel: #f6f7f9;
  --accent: #2f6fde; --base: #9aa3b0; --bad: #a3121f }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e6e7e9; --soft: #a3a8b1; --line: #363a41;
  --panel: #1d2024; --accent: #79a8ff; --base: #6b7280; --bad: #ff8f8f } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1.25rem 1rem 3rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h1 { font-size: 1.35rem; margin: 0 0 .25rem } h2 { font-size: 1.1rem; margin: 0 0 .25rem }
section { border-top: 1px solid var(--line); margin-top: 1.5rem; padding-top: 1rem }
p { margin: .35rem 0 } .soft { color: var(--soft) } .bad { color: var(--bad) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; margin: .4rem 0 }
th, td { padding: .25rem 1.1rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
thead th { color: var(--soft); font-weight: 500; font-size: .82rem; white-space: nowrap } tbody th { font-weight: 500; white-space: nowrap }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); gap: 1rem; margin: .5rem 0 }
figure { margin: 0; background: var(--panel); border-radius: 6px; padding: .6rem .7rem } figcaption { font-size: .85rem; font-weight: 600 }
svg { display: block; width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
.bar { fill: var(--accent) } .bar.first { fill: var(--base) } .axis { stroke: var(--line) } .spread { stroke: var(--ink); fill: none }
@media (max-width: 30rem) { body { padding: .9rem .7rem 2rem; font-size: 14px } th, td { padding-right: .7rem } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(found: Comparison) -> str:
    """The whole page."""
    title = escape(f"{found.model} version {found.version}: ways to run it")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>{''.join(_sections(found))}</main></body></html>\n"
    )


def _sections(found: Comparison) -> Iterator[str]:
    yield (
        f'<p class="soft">signature {escape(found.signature)}, measured {escape(found.created_at)} on '
        f"{escape(sentence(found.machine))}.</p>"
    )
    latency = (_latency(found, batch) for batch in found.batches)
    yield _section(
        "Latency",
        "Milliseconds of a call, host arrays in and out: the median, and a line from the 10th to the 90th percentile. "
        "Shorter is better; each chart has a scale of its own.",
        f'<div class="charts">{"".join(latency)}</div>',
    )
    first = (_first_call(found, batch) for batch in found.batches)
    yield _section(
        "First call",
        "Seconds to the first answer at a batch, compile included. Measured once.",
        f'<div class="charts">{"".join(first)}</div>',
    )
    yield _section("Figures", _how(found), _table(found))
    yield _section(
        "Ways",
        "What each is, and how far its answers are from those of the source, which the bundle's goldens hold.",
        _ways(found.ways),
    )
    yield _section("Sizes", "", _sizes(found))


def _section(title: str, text: str, content: str) -> str:
    said = f'<p class="soft">{escape(text)}</p>' if text else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def _latency(found: Comparison, batch: int) -> str:
    cells = _at(found, batch)
    data = [
        Bar(
            way.name,
            cell.median_ms,
            cell.low_ms,
            cell.high_ms,
            f"{short(cell.median_ms)} ms",
            way.name == "jit",
        )
        for way, cell in cells
    ]
    return bars(f"batch {batch}", _said(cells, lambda cell: f"{short(cell.median_ms)} ms"), data)


def _first_call(found: Comparison, batch: int) -> str:
    cells = _at(found, batch)
    data = [
        Bar(way.name, cell.first_call_s, None, None, f"{short(cell.first_call_s)} s", way.name == "jit")
        for way, cell in cells
    ]
    return bars(f"batch {batch}", _said(cells, lambda cell: f"{short(cell.first_call_s)} s"), data)


def _at(found: Comparison, batch: int) -> list[tuple[WayFigures, Cell]]:
    return [(way, cell) for way in found.ran for cell in way.cells if cell.batch == batch]


def _said(cells: Sequence[tuple[WayFigures, Cell]], text) -> str:
    return ", ".join(f"{way.name} {text(cell)}" for way, cell in cells)


def _how(found: Comparison) -> str:
    tokens = "" if found.tokens_per_row is None else f" A row is {found.tokens_per_row} tokens."
    return (
        f"{found.rounds} rounds, in each of which every way has its turn at every batch, {found.seconds:g} s in all for each "
        f"line.{tokens}"
    )


def _table(found: Comparison) -> str:
    headings = ["batch", "median ms", "10-90%", "/ jit", "rows/s"]
    headings += ["first call s"] if found.tokens_per_row is None else ["tokens/s", "first call s"]
    head = '<th scope="col">way</th>' + "".join(f'<th class="n" scope="col">{h}</th>' for h in headings)
    rows = "".join(
        f'<tr><th scope="row">{escape(way.name)}</th>{"".join(_number(text) for text in row(cell))}</tr>'
        for way in found.ran
        for cell in way.cells
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _ways(ways: Sequence[WayFigures]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(way.name)}</th>'
        f"<td{' class="bad"' if way.mismatch else ''}>{escape(about(way))}</td></tr>"
        for way in ways
    )
    return f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'


def _sizes(found: Comparison) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{_number(bytes_text(count))}</tr>'
        for name, count in found.sizes.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _number(text: str) -> str:
    return f'<td class="n">{escape(text)}</td>'
