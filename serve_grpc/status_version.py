"""What the status page says of one version: how long its stages take, how full its batches are, what it takes."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from serve_grpc.charts import Bar, bars

Json = Mapping[str, Any]
STAGES = {
    "total": "accepted to answered",
    "queue": "accepted to leaving the queue",
    "assemble": "rows into a bucket",
    "device": "a run, to its results",
    "encode": "results to answers sent",
}


def version_details(model: str, version: Json, opened: bool) -> str:
    """A part that can be folded."""
    number_ = version["version"]
    key = escape(f"{anchor(model)}-{number_}")
    stages, rows = version["stages"], version["batch_rows"]
    charts = ""
    if (total := stages.get("total")) and total["count"]:
        charts += _latency(total)
    if rows and rows["count"]:
        charts += _batch_sizes(rows)
    charts = f'<div class="charts">{charts}</div>' if charts else '<p class="soft">No request yet.</p>'
    return (
        f'<details id="{key}"{" open" if opened else ""}><summary>version {number_} in detail</summary>'
        f"{charts}{_padding(version)}{_stages(stages)}"
        f"{''.join(_signature(version, signature) for signature in version['signatures'])}</details>"
    )


def _latency(total: Json) -> str:
    """Requests by duration, over the buckets between the first and the last that hold any."""
    buckets = total["buckets_ms"]
    held = [at for at, (_, count) in enumerate(buckets) if count]
    first, last = max(0, held[0] - 1), min(len(buckets) - 1, held[-1] + 1)
    shown = buckets[first : last + 1]
    lower = [buckets[at - 1][0] if at else 0 for at in range(first, last + 1)]
    data = [
        Bar(
            f"{bound:g}" if bound is not None else "more",
            f"{count:,} of {total['count']:,} took {below:g} to {bound:g} ms"
            if bound is not None
            else f"{count:,} took more than {below:g} ms",
            count,
        )
        for (bound, count), below in zip(shown, lower, strict=True)
    ]
    marks = [
        (_position(total[name], shown, lower), f"{name[:3]} {total[name]:g}") for name in ("p50_ms", "p99_ms")
    ]
    summary = (
        f"of {total['count']:,} requests half took at most {total['p50_ms']:g} ms, 99 in 100 at most "
        f"{total['p99_ms']:g} ms"
    )
    return bars("Latency in ms, up to", summary, data, marks)


def _position(value: float, shown: Sequence[Sequence[Any]], lower: Sequence[float]) -> float:
    """Where a value lies, in bars from the left."""
    for at, ((bound, _), below) in enumerate(zip(shown, lower, strict=True)):
        if bound is None or value <= bound:
            return at + (1.0 if bound is None else max(0.0, value - below) / (bound - below))
    return float(len(shown))


def _batch_sizes(rows: Json) -> str:
    buckets = rows["buckets"]
    last = max(at for at, (_, count) in enumerate(buckets) if count)
    data = [
        Bar(
            str(bound) if bound is not None else "more",
            f"{count:,} of {rows['count']:,} runs had at most {bound} rows"
            if bound is not None
            else f"{count:,} had more",
            count,
        )
        for bound, count in buckets[: max(last + 1, 4)]
    ]
    summary = f"{rows['count']:,} runs had {rows['mean']:g} rows on average"
    return bars("Rows of a run, up to", summary, data)


def _padding(version: Json) -> str:
    rows = version["batch_rows"]
    if not rows or not rows["count"]:
        return ""
    wasted = version["padding_rows"]
    share = wasted / (rows["rows"] + wasted)
    positions = version["padding_positions"]
    behind = "" if positions is None else f", and {number(positions)} positions behind the ends of rows"
    return (
        f"<p>Runs: {number(rows['count'])}, of {rows['mean']:g} rows on average; padding was {share:.1%} of what ran "
        f"({number(wasted)} rows){behind}.</p>"
    )


def _stages(stages: Json) -> str:
    rows = [
        (
            f"{name}: <span class='soft'>{words}</span>",
            number(stages[name]["count"]),
            *(number(stages[name][each]) for each in ("mean_ms", "p50_ms", "p90_ms", "p99_ms")),
        )
        for name, words in STAGES.items()
        if stages.get(name, {}).get("count")
    ]
    heads = ("stage", "count", "mean ms", "p50", "p90", "p99")
    return table("Time by stage", heads, rows, numbers=(1, 2, 3, 4, 5)) if rows else ""


def _signature(version: Json, signature: Json) -> str:
    lanes = signature["lanes"]
    heads: tuple[str, ...] = ("bucket", "ms a run", "rows/s", "golden error / allowed")
    rows = [_bucket(bucket) for bucket in signature["buckets"]]
    if lanes:
        lengths, sizes = (any(lane[of] for lane in lanes) for of in ("length", "sizes"))
        heads = (*(("sizes",) if sizes else ()), *(("length up to",) if lengths else ()), *heads)
        rows = [
            (
                *([_sizes(lane)] if sizes else []),
                *([str(lane["length"])] if lengths else []),
                *_bucket(bucket),
            )
            for lane in lanes
            for bucket in lane["buckets"]
        ]
    elif len(version["signatures"]) == 1:  # runs are counted by version and bucket
        heads, runs = (*heads, "runs"), version["runs_by_bucket"]
        rows = [(*row, number(runs.get(row[0], 0))) for row in rows]
    tensors = table(
        "",
        ("takes", "gives"),
        [(_tensors(signature["inputs"]), _tensors(signature["outputs"]))],
        numbers=(),
    )
    return (
        f"<h3>signature {escape(signature['name'])} "
        f'<span class="soft">· {number(signature["rows_waiting"])} rows wait</span></h3>{tensors}'
        + table("Buckets in use, as measured at load", heads, rows, numbers=range(len(heads)))
    )


def _sizes(lane: Json) -> str:
    return escape(", ".join(f"{symbol}={size}" for symbol, size in lane["sizes"].items()))


def _bucket(bucket: Json) -> tuple[str, ...]:
    error = bucket["golden_error"]
    return (
        str(bucket["rows"]),
        number(bucket["ms"]),
        number(bucket["rows_per_second"]),
        "" if error is None else f"{error:.2g}",
    )


def _tensors(tensors: Sequence[Json]) -> str:
    return "<br>".join(
        f"<code>{escape(t['name'])}: {escape(t['dtype'])}[{escape(', '.join(map(str, t['shape'])))}]</code>"
        for t in tensors
    )


def anchor(model: str) -> str:
    """The id of a model's section."""
    return f"model-{model}"


def state(name: str) -> str:
    """A version's state, in its colour."""
    return f'<b class="{escape(name)}">{escape(name)}</b>'


def number(value: float | None) -> str:
    """For a person: thousands apart, three digits that count; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, int) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    """rows: HTML of the cells, the first of which names its row. numbers: columns that are aligned as such."""

    def css(at: int) -> str:
        return ' class="n"' if at in numbers else ""

    head = "".join(f'<th scope="col"{css(at)}>{escape(text)}</th>' for at, text in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row"{css(at)}>{cell}</th>' if at == 0 else f"<td{css(at)}>{cell}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
