"""What was measured, as a table on the terminal and as Markdown between marks in docs/benchmarks.md."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.programs import TITLES
from benchmarks.peers.sweep import shown

Cell = Mapping[str, Any]
HEADINGS = ("server", "setting", "requests/s", "of in process", "p50 ms", "p99 ms", "CPU µs a request")
# (ours, theirs): what is set side by side under a table, beside our fastest and the best peer.
PAIRS = (("jaxport native", "grpcio sync"), ("jaxport native behind Envoy", "jaxport grpcio"))
OURS = "jaxport native"


def rows(cell: Cell) -> list[tuple[str, ...]]:
    """The lines of a table, by requests/s; below them who has no figure and why."""
    alone = cell["ceiling"]
    rate, cpu = (_spread([c[key] for c in alone]) for key in ("rows_per_s", "cpu_us_per_row"))
    found: list[tuple[str, ...]] = [("in process", f"batch {alone[0]['bucket']}", rate, "1", "", "", cpu)]
    measured = {name: entry for name, entry in cell["servers"].items() if whole(entry)}
    for name in sorted(measured, key=lambda name: -_median(measured[name], "requests_per_s")):
        entry = measured[name]
        ratios = [w["requests_per_s"] / c["rows_per_s"] for w, c in zip(entry["windows"], alone, strict=True)]
        columns = [_spread([w[key] for w in entry["windows"]]) for key in ("p50_ms", "p99_ms", "cpu_us")]
        rate = _spread([w["requests_per_s"] for w in entry["windows"]])
        found.append((name, shown(entry["setting"]), rate, _spread(ratios), *columns))
    found += [(n, e["failed"], "", "", "", "", "") for n, e in cell["servers"].items() if not whole(e)]
    return found


def whole(entry: Mapping[str, Any]) -> bool:
    """Whether a server was measured in every round."""
    return bool(entry["windows"]) and not entry["failed"]


def comparisons(cell: Cell) -> list[str]:
    """Sentences: ours beside the best peer and the fixed pairs, as ratios of rounds with their range."""
    peers = [n for n, e in cell["servers"].items() if whole(e) and not n.startswith("jaxport")]
    pairs = [*((OURS, peer) for peer in _best(cell, peers)), *PAIRS]
    done = dict.fromkeys(pair for pair in pairs if all(whole(cell["servers"].get(n, _NOBODY)) for n in pair))
    return [_beside(cell, *pair) for pair in done]


_NOBODY = {"windows": [], "failed": None}


def _best(cell: Cell, peers: Sequence[str]) -> list[str]:
    """The peer with the most requests/s, and the one with the lowest p50 where that is another."""
    if not peers:
        return []
    fastest = max(peers, key=lambda n: _median(cell["servers"][n], "requests_per_s"))
    quickest = min(peers, key=lambda n: _median(cell["servers"][n], "p50_ms"))
    return list(dict.fromkeys((fastest, quickest)))


def _beside(cell: Cell, ours: str, theirs: str) -> str:
    pairs = list(zip(cell["servers"][ours]["windows"], cell["servers"][theirs]["windows"], strict=True))
    parts = [
        f"{words} {_spread([a[key] / b[key] for a, b in pairs])}"
        for key, words in (("requests_per_s", "requests/s"), ("p50_ms", "p50"), ("cpu_us", "CPU a request"))
    ]
    return f"{ours} as a multiple of {theirs}: {', '.join(parts)}."


def _median(entry: Mapping[str, Any], key: str) -> float:
    return statistics.median(w[key] for w in entry["windows"])


def _spread(values: Sequence[float]) -> str:
    """Median and, of several, the range."""
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Two or three digits that count, thousands grouped."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.3f}" if value >= 0.1 else f"{value:.2g}"


def show(result: Mapping[str, Any], console: Console) -> None:
    """A table per model and concurrency on the terminal."""
    for model, cells in result["models"].items():
        for concurrency, cell in cells.items():
            table = Table(*HEADINGS, title=f"{model}, {concurrency} in flight")
            for row in rows(cell):
                table.add_row(*row)
            console.print(table)
            for line in comparisons(cell):
                console.print(line, markup=False, highlight=False)
    for name, why in result["not_installable"].items():
        console.print(f"{name}: not installable, because {why}", markup=False)


def markdown(result: Mapping[str, Any], model: str) -> str:
    """The section of one model: what, by which command, on which machine, with which versions; tables."""
    lines = [f"### {TITLES[model]}", "", f"`{result['command']}`, {result['date']}, {result['machine']}.", ""]
    for concurrency, cell in result["models"][model].items():
        lines += [f"{concurrency} in flight, {len(cell['ceiling'])} rounds of {cell['seconds']:.3g} s:", ""]
        lines += [_line(HEADINGS), _line(["---", "---", *["---:"] * (len(HEADINGS) - 2)])]
        lines += [_line(row) for row in rows(cell)]
        lines += ["", *(f"- {line}" for line in comparisons(cell)), ""]
    for name, why in result["not_installable"].items():
        lines += [f"{name}: not installable, because {why}", ""]
    lines += [f"![chart](peers-{model}.svg)", "", f"Versions: {_versions(result['versions'])}."]
    return "\n".join(lines)


def _versions(versions: Mapping[str, Mapping[str, str]]) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{package} {version}" for package, version in found.items())
        for name, found in versions.items()
    )


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(value.replace('|', '/') for value in values)} |"


def between(text: str, mark: str, section: str) -> str:
    """`text` with what stands between <!-- MARK --> and <!-- /MARK --> replaced; appended where they are missing."""
    start, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    block = f"{start}\n{section}\n{end}"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    replace: Callable[[re.Match[str]], str] = lambda _: block  # noqa: E731
    return pattern.sub(replace, text) if pattern.search(text) else f"{text.rstrip()}\n\n{block}\n"
