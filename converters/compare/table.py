"""A comparison on a terminal: a table, and below it what it was measured with."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from converters.compare.figures import Cell, Comparison, WayFigures
from converters.compare.machine import sentence


def print_table(found: Comparison, console: Console) -> None:
    """Latency as the median, with the 10th and 90th percentile behind it."""
    title = f"{found.model} version {found.version}, {found.signature}: host arrays in, host arrays out"
    table = Table(title=Text(title, style="table.title"), title_justify="left")
    table.add_column("way", no_wrap=True)
    headings = ["batch", "ms", "10-90%", "/ jit", "rows/s"]
    headings += ["first s"] if found.tokens_per_row is None else ["tokens/s", "first s"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for way in found.ran:
        for at, cell in enumerate(way.cells):
            table.add_row("" if at else way.name, *row(cell), end_section=cell is way.cells[-1])
    console.print(table)
    for line in notes(found):
        console.print(Text(line), soft_wrap=True)


def row(cell: Cell) -> list[str]:
    """The texts of a cell, in the order of the headings; tokens only where there are any."""
    texts = [
        str(cell.batch), short(cell.median_ms), f"{short(cell.low_ms)}-{short(cell.high_ms)}",
        short(cell.times_jit), short(cell.rows_per_s),
    ]  # fmt: skip
    return [
        *texts,
        *([] if cell.tokens_per_s is None else [short(cell.tokens_per_s)]),
        short(cell.first_call_s),
    ]


def notes(found: Comparison) -> Iterator[str]:
    """One line for each way, then sizes, machine, and how it was measured."""
    width = max(len(way.name) for way in found.ways)
    for way in found.ways:
        yield f"{way.name:{width}}  {about(way)}"
    yield "sizes: " + ", ".join(f"{name} {bytes_text(count)}" for name, count in found.sizes.items())
    tokens = "" if found.tokens_per_row is None else f", {found.tokens_per_row} tokens a row"
    yield (
        f"{found.rounds} rounds of {found.seconds:g} s in all for each line{tokens}; first s: to the first answer at that "
        "batch, compile included"
    )
    yield sentence(found.machine)


def about(way: WayFigures) -> str:
    """What it is and how its answers differ from the source's, or why it was not run."""
    if way.reason is not None:
        return f"not run: {way.reason}"
    load = "" if way.load_s is None else f", loaded in {short(way.load_s)} s"
    if way.mismatch is not None:
        return f"{way.what}{load}; WRONG: {way.mismatch}"
    if not way.max_difference:
        return f"{way.what}{load}; gives the goldens themselves"
    share = f"{way.share_of_allowed or 0:.1%} of what is allowed"
    return f"{way.what}{load}; differs from the goldens by at most {way.max_difference:.3g}, {share}"


def short(figure: float | None) -> str:
    """As many digits as a measurement has meaning."""
    if figure is None:
        return "-"
    if figure >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}" if figure >= 0.1 else f"{figure:.3f}"


def bytes_text(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
