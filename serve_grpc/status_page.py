"""The page at /: what a person wants to know at a glance, in plain HTML without scripts."""

from collections.abc import Mapping
from html import escape

from converters.manifest import TensorInfo
from serve_grpc.catalog import Catalog, SignatureInfo, VersionInfo
from serve_grpc.metrics import Metrics

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1b1b1b }
h1 { font-size: 1.3rem } h2 { font-size: 1.1rem; margin: 1.5rem 0 .3rem }
table { border-collapse: collapse; margin: .5rem 0 } th, td { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
th { font-weight: 600; border-bottom: 1px solid #bbb } td.n { text-align: right; font-variant-numeric: tabular-nums }
code { font-size: .93em } .SERVING { color: #05652b } .FAILED { color: #a3121f } .LOADING, .DRAINING { color: #7a5200 }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #e4e4e4 } .SERVING { color: #6fcf97 }
  .FAILED { color: #ff8a8a } .LOADING, .DRAINING { color: #f2c94c } }
"""


def render(catalog: Catalog, metrics: Metrics, ready: bool) -> bytes:
    """The whole page as UTF-8."""
    counts = _requests(metrics)
    models = (
        "".join(_model(name, versions, counts) for name, versions in catalog.models().items())
        or "<p>No model yet. A bundle that appears in the models folder is picked up without a restart.</p>"
    )
    state = "ready" if ready else "not ready"
    body = (
        f"<h1>jaxport server: {state}</h1>{models}"
        '<p><a href="/metrics">metrics</a> · <a href="/healthz">healthz</a> · <a href="/readyz">readyz</a></p>'
    )
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>jaxport</title><style>{STYLE}</style>'
    )
    return (head + body).encode()


def _model(
    name: str, versions: list[VersionInfo], counts: Mapping[tuple[str, str], Mapping[str, int]]
) -> str:
    parts = [f"<h2>{escape(name)}</h2>"]
    for info in versions:
        by_status = counts.get((name, str(info.version)), {})
        answered = (
            ", ".join(f"{count} {escape(status)}" for status, count in sorted(by_status.items()))
            or "none yet"
        )
        reason = f": {escape(info.reason)}" if info.reason else ""
        window = (
            f"<br>loads with any jaxlib released until {escape(info.window_ends)}" if info.window_ends else ""
        )
        parts.append(
            f'<p>version {info.version} <b class="{info.state}">{info.state}</b>{reason}{window}'
            f"<br>requests: {answered}</p>"
        )
        parts += [_signature(signature) for signature in info.signatures]
    return "".join(parts)


def _signature(info: SignatureInfo) -> str:
    def tensors(specs: tuple[TensorInfo, ...]) -> str:
        return "<br>".join(
            f"<code>{escape(t.name)}: {escape(t.dtype)}[{', '.join(map(str, t.shape))}]</code>" for t in specs
        )

    rows = "".join(
        f'<tr><td class="n">{bucket}<td class="n">{seconds * 1e3:.3g}<td class="n">{bucket / seconds:,.0f}'
        for bucket, seconds in info.bucket_seconds.items()
    )
    return (
        f"<table><tr><th>signature<th>takes<th>gives<tr><td>{escape(info.name)}"
        f"<td>{tensors(info.inputs)}<td>{tensors(info.outputs)}</table>"
        f"<table><tr><th>bucket<th>ms a run<th>rows/s{rows}</table>"
    )


def _requests(metrics: Metrics) -> dict[tuple[str, str], dict[str, int]]:
    """(model, version) -> status -> requests, over all protocols."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for labels, seconds in metrics.request_seconds.read():
        by_status = counts.setdefault((labels["model"], labels["version"]), {})
        by_status[labels["status"]] = by_status.get(labels["status"], 0) + seconds.observations
    return counts
