"""The page at /: what a person wants to know at a glance. Whole without scripts; made of `Overview.read()`."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from serve_grpc.charts import lines
from serve_grpc.status_assets import POLICY, SCRIPT, STYLE
from serve_grpc.status_version import anchor, number, state, table, version_details

Json = Mapping[str, Any]
# Versions of more models than this are folded: a list is read faster than a scroll.
MOST_OPEN = 4
SOON_DAYS = 30


def render(overview: Json) -> bytes:
    """The whole page as UTF-8."""
    server, models = overview["server"], overview["models"]
    ready = "ready" if server["ready"] else "not ready"
    body = "".join(
        (
            f'<h1>jaxport server <span class="tag {"good" if server["ready"] else "warn"}">{ready}</span></h1>',
            _waiting(server["waiting_for"]),
            _facts(server),
            _traffic(overview["traffic"]),
            _summary(models),
            *(_model(model, folded=len(models) > MOST_OPEN) for model in models),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>jaxport server</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<noscript><meta http-equiv="refresh" content="10"></noscript>'
        f"<style>{STYLE}</style></head><body>"
        '<p id="away" class="reason" role="status" hidden>The server does not answer; this is its last word.</p>'
        f"<main>{body}</main><footer><section>"
        '<p><a href="/status.json">status.json</a> · <a href="/metrics">metrics</a> · '
        '<a href="/healthz">healthz</a> · <a href="/readyz">readyz</a></p></section></footer>'
        f"<script>{SCRIPT}</script></body></html>"
    ).encode()


def _waiting(models: Sequence[str]) -> str:
    if not models:
        return ""
    return f'<p class="reason">Not ready yet: no version serves of {", ".join(map(escape, models))}</p>'


def _facts(server: Json) -> str:
    device, cache = server["device"], server["compile_cache"]
    memory = device["memory_bytes"]
    faults = server["compiles_after_ready"]
    facts = {
        "Up": _span(server["uptime_seconds"]),
        "Version": f"jaxport {escape(server['version'])}, JAX {escape(server['jax'])}",
        "Device": f"{escape(device['platform'])} ({escape(device['kind'])}{_count(device['count'])})",
        "Memory": _memory(server["resident_bytes"], memory),
        "Transport": f"{escape(server['transport']['name'])}: {escape(server['transport']['reason'])}",
        "Compile cache": f"{escape(cache['folder'])}: {_cache(cache)}",
        "Compiles by requests": f'<span class="{"bad" if faults else "good"}">{number(faults)}</span>',
    }
    return (
        "<dl>"
        + "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in facts.items())
        + "</dl>"
    )


def _count(devices: int) -> str:
    return f", {devices} of them" if devices > 1 else ""


def _cache(cache: Json) -> str:
    if not cache["misses"]:
        return '<span class="good">nothing had to be compiled</span>'
    what = "" if cache["present"] else "not there; "
    return f'<span class="warn">{what}{number(cache["misses"])} executables were compiled</span>'


def _memory(resident: int | None, device: Mapping[str, int]) -> str:
    parts = []
    if resident is not None:
        parts.append(f"{resident / 2**20:,.0f} MiB of the host")
    if "in_use" in device:
        limit = f" of {device['limit'] / 2**30:,.1f}" if "limit" in device else ""
        parts.append(f"{device['in_use'] / 2**30:,.1f}{limit} GiB of the device")
    return ", ".join(parts) or "not known"


def _traffic(traffic: Json) -> str:
    answered, refused, waiting = (
        traffic[name] for name in ("answered_per_second", "refused_per_second", "rows_waiting")
    )
    if not answered:
        return ""
    span = f"{_span(len(answered) * traffic['interval_seconds'])} ago"
    rates = lines(
        "Requests a second",
        f"{answered[-1]:,.0f} answered and {refused[-1]:,.0f} refused in the last second; "
        f"at most {max(answered):,.0f} answered and {max(refused):,.0f} refused",
        [("answered", answered), ("refused", refused)],
        span,
    )
    queued = lines(
        "Rows waiting", f"{waiting[-1]:,} now, at most {max(waiting):,}", [("waiting", waiting)], span
    )
    return (
        f'<section><h2>Traffic</h2><div class="charts">{rates}{queued}</div>'
        f'<p class="soft"><span class="key">answered: {answered[-1]:,.0f}/s</span> &nbsp; '
        f'<span class="key refused">refused: {refused[-1]:,.0f}/s</span> &nbsp; waiting: {waiting[-1]:,} rows</p></section>'
    )


def _summary(models: Sequence[Json]) -> str:
    if not models:
        return (
            "<section><h2>Models</h2><p>No model yet. A bundle that appears in the models folder is picked up without "
            "a restart.</p></section>"
        )
    if len(models) == 1:
        return ""
    rows = []
    for model in models:
        default = next((v for v in model["versions"] if v["version"] == model["default"]), None)
        total = (default or {"stages": {}})["stages"].get("total", {})
        states = "<br>".join(
            f'<span class="whole">{v["version"]} {state(v["state"])}</span>' for v in model["versions"]
        )
        rows.append(
            (
                f'<a class="name" href="#{escape(anchor(model["name"]))}">{escape(model["name"])}</a>',
                "none" if model["default"] is None else number(model["default"]),
                states,
                number(sum(sum(v["requests"].values()) for v in model["versions"])),
                number(total.get("p50_ms")),
                number(total.get("p99_ms")),
            )
        )
    heads = ("model", "default", "versions", "requests", "p50 ms", "p99 ms")
    return f"<section><h2>Models</h2>{table('', heads, rows, numbers=(1, 3, 4, 5))}</section>"


def _model(model: Json, folded: bool) -> str:
    name = escape(model["name"])
    words = [f"policy: {escape(model['policy'] or 'not read yet')}"]
    if model["labels"]:
        words.append("labels: " + _labels(model["labels"]))
    if model["pending_labels"]:
        words.append("labels that wait for their version: " + _labels(model["pending_labels"]))
    if model["shed"]:
        words.append("shed: " + ", ".join(f"{number(n)} {escape(why)}" for why, n in model["shed"].items()))
    problems = "".join(f'<p class="reason">{escape(problem)}</p>' for problem in model["problems"])
    failed = "".join(
        f'<p class="reason">version {v["version"]}: {escape(v["reason"])}</p>'
        for v in model["versions"]
        if v["reason"]
    )
    details = "".join(
        version_details(model["name"], v, opened=not folded and v["version"] == model["default"])
        for v in model["versions"]
        if v["signatures"]
    )
    return (
        f'<section id="{escape(anchor(model["name"]))}"><h2>{name}</h2><p class="soft">{" · ".join(words)}</p>{problems}{failed}'
        f"{_versions(model)}{details}</section>"
    )


def _labels(labels: Mapping[str, int]) -> str:
    return ", ".join(f"{escape(label)} → {version}" for label, version in labels.items())


def _versions(model: Json) -> str:
    rows = []
    for version in reversed(model["versions"]):
        names = ["default"] if version["version"] == model["default"] else []
        labels = " ".join(f'<span class="tag">{escape(name)}</span>' for name in (*names, *version["labels"]))
        answered = (
            ", ".join(f"{number(n)} {escape(s)}" for s, n in sorted(version["requests"].items()))
            or "none yet"
        )
        rows.append(
            (
                str(version["version"]),
                state(version["state"]),
                labels,
                answered,
                _golden(version),
                _window(version),
            )
        )
    heads = ("version", "state", "labels", "requests", "goldens", "read by jaxlibs of")
    return table("", heads, rows, numbers=())


def _golden(version: Json) -> str:
    errors = [
        bucket["golden_error"]
        for signature in version["signatures"]
        for bucket in signature["buckets"]
        if bucket["golden_error"] is not None
    ]
    if version["proven_at"] is None:
        return '<span class="bad">not proven</span>' if version["state"] == "FAILED" else ""
    worst = f", worst error {max(errors):.2g} of the allowed" if errors else ""
    when = escape(version["proven_at"])
    return f'<span class="good">right</span>{worst}<br><time class="soft" datetime="{when}">{when}</time>'


def _window(version: Json) -> str:
    """The days of the jaxlib releases that read the program, and who wrote it: a server with its jaxlib pinned never
    loses it."""
    left = version["window_days_left"]
    if left is None:
        return ""
    colour = "good" if left >= SOON_DAYS else "warn" if left >= 0 else "bad"
    words = f"{left} days left" if left >= 0 else f"{-left} days ago"
    days = f"until {version['window_ends']}"
    if version["window_begins"]:
        days = f"{version['window_begins']} to {version['window_ends']}"
    written = (
        f'<br><span class="soft">written by {escape(version["jaxlib"])}</span>' if version["jaxlib"] else ""
    )
    return f'{escape(days)}<br><span class="{colour}">{words}</span>{written}' + (
        "" if left >= SOON_DAYS else '<br><span class="soft">refresh it before upgrading JAX</span>'
    )


def _span(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
