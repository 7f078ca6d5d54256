"""The status page and /status.json: the same facts, for people and for scripts."""

import html.parser
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.manifest import TensorInfo
from serve_grpc.batcher import Work
from serve_grpc.catalog import DRAINING, FAILED, LOADING, SERVING, Catalog, Choice, SignatureInfo, VersionInfo
from serve_grpc.ended import Run
from serve_grpc.errors import Code
from serve_grpc.history import History
from serve_grpc.metrics import Metrics, VersionMetrics
from serve_grpc.overview import Overview, ServerFacts
from serve_grpc.status_page import render
from serve_grpc.transport import Call
from tests.server_process import ServerProcess, eventually

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
LONG = "a-model-with-a-name-that-somebody-made-of-a-path-and-a-commit." + "0123456789abcdef" * 4
VOID = {"meta", "link", "br", "img"}


def signature(name: str = "predict") -> SignatureInfo:
    return SignatureInfo(
        name,
        (TensorInfo("x", "float32", ("b", 4)),),
        (TensorInfo("logits", "bfloat16", ("b", 3)),),
        {1: 5e-5, 4: 6e-5, 16: 8e-5},
        {1: 0.009, 4: 0.009, 16: 0.21},
    )


def version(number: int, state: str, days: int = 200, **fields: Any) -> VersionInfo:
    ends = (datetime.now(UTC).date() + timedelta(days=days)).isoformat()
    loaded = {} if state in (FAILED, LOADING) else {"signatures": (signature(),), "proven_at": 1.8e9}
    return VersionInfo(number, state, window_ends=ends, jaxlib="0.12.0", **{**loaded, **fields})


def overview(catalog: Catalog, metrics: Metrics, history: History | None = None) -> dict[str, Any]:
    facts = ServerFacts(
        "native",
        "loopback",
        "cuda",
        "NVIDIA L4",
        2,
        "0.12.0",
        Path("/volume/cache/jaxlib-0.12.0-nvidia-l4"),
        time.time() - 4000,
    )
    memory = {"in_use": 3 << 30, "peak": 4 << 30, "limit": 22 << 30}
    return Overview(
        facts, catalog, metrics, history or History(metrics), lambda: True, tuple, lambda: memory
    ).read()


def busy(metrics: Metrics, model: str, number: int, calls: int = 300) -> None:
    """Requests of a version, without a server: every stage has its figures."""
    series = VersionMetrics(metrics, model, number, "2030-01-01")
    series.watch_depth("predict", lambda: 7)
    rng = np.random.default_rng(number)
    for seconds in rng.lognormal(-5.5, 0.6, calls):
        now = time.monotonic()
        call = Call("/s/Predict", b"", None, now - seconds, None, None)  # type: ignore[arg-type]
        rows = int(rng.integers(1, 17))
        run = Run("predict", rows, 16, now - 5e-4, now - 4e-4, now - 1e-4, now)
        series.launched([seconds / 2], 1e-4)
        series.ended([Work(call, "jaxport.v1", [], rows, (), bytes)], "predict", Code.OK, now, run)  # type: ignore[arg-type]
        series.ran(run)
    series.refused(call, "jaxport.v1", "predict", Code.INVALID_ARGUMENT, "")
    series.full.inc(3)
    series.expired.inc()


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    """Every state that a version can be in, under names that are meant to break the page."""
    catalog, metrics = Catalog(), Metrics()
    history = History(metrics)
    catalog.put("iris", version(1, DRAINING, days=20))
    catalog.put("iris", version(2, SERVING))
    catalog.put("iris", version(3, FAILED, reason=f"golden 0: error 0.3 is over the allowed 0.1 {EVIL}"))
    catalog.put("iris", version(4, LOADING))
    catalog.choose(
        "iris", Choice("latest 2", 2, {"stable": 2, "old": 1}, {"next": 4}, (f"labels/x holds {EVIL}",))
    )
    catalog.put(LONG, version(7, SERVING, days=-3))
    catalog.choose(LONG, Choice("pinned 7", 7))
    catalog.put(EVIL, version(1, FAILED, reason=EVIL))
    busy(metrics, "iris", 2)
    busy(metrics, LONG, 7, calls=1)
    for _ in range(30):
        busy(metrics, "iris", 1, calls=20)
        history.sample()
    return overview(catalog, metrics, history)


class Outline(html.parser.HTMLParser):
    """Fails on a tag that is not closed; collects text, tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def all(self, tag: str) -> list[Mapping[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_says_what_there_is(everything: dict[str, Any]) -> None:
    page = Outline(render(everything).decode())
    for part in (
        "native: loopback", "cuda (NVIDIA L4, 2 of them)", "3.0 of 22.0 GiB of the device", "policy: latest 2",
        "labels: stable → 2, old → 1".replace("stable → 2, old → 1", "old → 1, stable → 2"),
        "labels that wait for their version: next → 4", "queue_full", "SERVING", "DRAINING", "FAILED", "LOADING",
        "20 days left", "3 days ago", "refresh it before upgrading JAX", "worst error 0.21 of the allowed",
        "golden 0: error 0.3", "300 OK", "1 INVALID_ARGUMENT", "7 rows wait", "float32[b, 4]", "bfloat16[b, 3]",
        "padding was", "200,000",
    ):  # fmt: skip
        assert part in page.text, part


def test_no_name_or_reason_becomes_a_tag(everything: dict[str, Any]) -> None:
    page = Outline(render(everything).decode())
    assert page.text.count(EVIL) == 5  # summary, heading, its reason, another's reason, a problem
    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert all(not (value or "").startswith(("http", "//")) for _, a in page.tags for value in a.values())


def test_tables_have_headings_and_charts_say_what_they_show(everything: dict[str, Any]) -> None:
    page = Outline(render(everything).decode())
    assert len(page.all("table")) > 8
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    charts = [attributes["aria-label"] for attributes in page.all("svg")]
    assert all(attributes["role"] == "img" for attributes in page.all("svg"))
    assert any("300 requests half took at most" in (label or "") for label in charts)
    assert any("rows on average" in (label or "") for label in charts)
    assert any("answered and" in (label or "") for label in charts)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {
        (link["href"] or "")[1:] for link in page.all("a") if (link["href"] or "").startswith("#")
    } <= set(ids)


def test_json_has_the_same_facts_and_no_nan(everything: dict[str, Any]) -> None:
    assert json.loads(json.dumps(everything, allow_nan=False)) == everything
    iris = next(model for model in everything["models"] if model["name"] == "iris")
    assert (iris["policy"], iris["default"], iris["labels"]) == ("latest 2", 2, {"old": 1, "stable": 2})
    assert iris["shed"]["queue_full"] == 3 * 31
    serving = iris["versions"][1]
    assert (serving["state"], serving["labels"], serving["window_days_left"]) == (SERVING, ["stable"], 200)
    assert (serving["jaxlib"], serving["window_begins"]) == ("0.12.0", "2026-09-28")
    assert "0.11.2" in serving["may_refuse"] and "0.12.0.1" not in serving["may_refuse"]
    assert serving["requests"] == {"OK": 300, "INVALID_ARGUMENT": 1}
    total = serving["stages"]["total"]
    assert 2 < total["p50_ms"] < 8 < total["p99_ms"] < 50
    assert sum(count for _, count in total["buckets_ms"]) == total["count"] == 300
    assert serving["batch_rows"]["rows"] + serving["padding_rows"] == 16 * 300
    assert serving["runs_by_bucket"] == {"16": 300}
    assert serving["signatures"][0]["buckets"][2] == {
        "rows": 16, "ms": 0.08, "rows_per_second": 200_000, "golden_error": 0.21
    }  # fmt: skip
    assert serving["proven_at"] == "2027-01-15T08:00:00Z"
    failed = iris["versions"][2]
    assert (failed["proven_at"], failed["stages"], failed["signatures"]) == (None, {}, [])
    assert len(everything["traffic"]["answered_per_second"]) == 30
    assert everything["traffic"]["rows_waiting"][-1] == 21


def test_without_a_model_the_page_says_what_to_do() -> None:
    page = Outline(render(overview(Catalog(), Metrics())).decode())
    assert "No model yet." in page.text
    assert page.all("svg") == []


def test_a_server_shows_itself(server: ServerProcess) -> None:
    server.predict("mlp", {"x": np.ones((3, 4), np.float32)})
    eventually(lambda: len(status(server)["traffic"]["rows_waiting"]) > 1, "two samples")
    found = status(server)
    assert found["server"]["ready"] is True
    assert f"transport={found['server']['transport']['name']} " in server.line("listening .*").group()
    assert found["server"]["resident_bytes"] > 1 << 20
    mlp = next(model for model in found["models"] if model["name"] == "mlp")["versions"][0]
    assert mlp["state"] == SERVING
    assert mlp["requests"]["OK"] >= 1
    assert mlp["stages"].keys() == {"total", "queue", "assemble", "device", "encode"}
    errors = [bucket["golden_error"] for bucket in mlp["signatures"][0]["buckets"]]
    assert all(0 <= error <= 1 for error in errors)
    assert abs(datetime.fromisoformat(mlp["proven_at"]).timestamp() - time.time()) < 3600
    code, page = server.get("/")
    assert code == 200
    assert "mlp" in Outline(page).text


def status(server: ServerProcess) -> dict[str, Any]:
    return json.loads(server.get("/status.json")[1])


@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_all_of_it_within_its_width(
    everything: dict[str, Any], tmp_path: Path, width: int
) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine; the HTML itself is tested above")
    page, shot = tmp_path / "page.html", tmp_path / "page.png"
    # The page forbids every script but its own: what measures it is asked for by a frame around it.
    page.write_bytes(render(everything))
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe id="f" src="page.html" style="width:{width}px;height:900px;border:0"></iframe><pre id="out"></pre>'
        "<script>f.onload = () => { const d = f.contentDocument;"
        "out.textContent = JSON.stringify({wide: d.documentElement.scrollWidth, inner: d.documentElement.clientWidth,"
        "scripts: d.scripts.length, bars: [...d.querySelectorAll('rect.bar')].filter("
        "bar => bar.getBoundingClientRect().height > 1 || !bar.checkVisibility()).length,"
        "all: d.querySelectorAll('rect.bar').length}) }</script>"
    )
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width + 40},1000", "--virtual-time-budget=3000",
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(tmp_path)}
    ran = subprocess.run(
        [chromium, *flags, "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=60, check=True, env=environment,
    )  # fmt: skip
    measured = json.loads(ran.stdout.partition('<pre id="out">')[2].partition("</pre>")[0])
    assert measured["inner"] == width
    assert measured["wide"] <= width
    assert measured["scripts"] == 1
    assert measured["bars"] == measured["all"] > 10
    subprocess.run(
        [chromium, *flags, f"--screenshot={shot}", page.as_uri()],
        capture_output=True, timeout=60, check=True, env=environment,
    )  # fmt: skip
    assert shot.stat().st_size > 20_000
