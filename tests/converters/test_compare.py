"""One model run in every way: what a comparison holds, and how it is shown. How fast anything is, no test says."""

import dataclasses
import html.parser
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from converters.bundle import MANIFEST, MANIFEST_DIGEST, digest_line, open_bundle
from converters.compare.figures import Asked, Comparison, cell_of
from converters.compare.page import render
from converters.compare.plot import draw
from converters.compare.side_by_side import compare, interleave
from converters.compare.source import NoSource, find_source
from converters.compare.table import print_table, short
from converters.errors import BadSpec, BundleNotFound
from converters.manifest_json import parse_manifest, to_json
from converters.spec import ExportSpec, SignatureSpec, TensorSpec
from converters.writer import _digest
from jaxport.cli import main
from tests.serve_grpc import bundles

QUICK = Asked(batches=(1, 4), seconds=0.02, rounds=2)
STAND_IN = Path(__file__).parent / "stand_in"
JAX_WAYS = ["jit", "AOT", "export", "eager"]


@pytest.fixture(scope="module", autouse=True)
def quick_to_compile() -> Iterator[None]:
    """Most of what makes a program fast takes longer than to run these."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def measured(models: Path) -> Comparison:
    """mlp, whose source is in tests/serve_grpc/bundles.py."""
    return compare(models / "mlp" / "1", QUICK)


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the stand-in."""
    script = tmp_path_factory.mktemp("bin") / "python"
    script.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={STAND_IN} exec {sys.executable} "$@"\n')  # without -I
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def saved(models: Path, tmp_path: Path) -> Callable[[str], Path]:
    """mlp with a SavedModel of the stand-in, which does as it is told."""

    def make(how: str) -> Path:
        bundle = shutil.copytree(models / "mlp" / "1", tmp_path / "mlp" / "1")
        folder = bundle / "savedmodel" / "1"
        folder.mkdir(parents=True)
        (folder / "how").write_text(how)
        np.savez(folder / "weights.npz", **bundles.mlp_params())
        return redo_manifest(bundle, files={f"savedmodel/1/{f.name}": _digest(f) for f in folder.iterdir()})

    return make


def redo_manifest(bundle: Path, files: Any = (), **changes: Any) -> Path:
    manifest = parse_manifest((bundle / MANIFEST).read_bytes(), "")
    changed = dataclasses.replace(manifest, files={**manifest.files, **dict(files)}, **changes)
    data = to_json(changed).encode()
    (bundle / MANIFEST).write_bytes(data)
    (bundle / MANIFEST_DIGEST).write_text(digest_line(data))
    return bundle


def way(found: Comparison, name: str) -> Any:
    return next(each for each in found.ways if each.name == name)


def test_every_way_is_measured_at_every_batch(measured: Comparison) -> None:
    assert [each.name for each in measured.ways] == [*JAX_WAYS, "SavedModel"]
    assert [each.name for each in measured.ran] == JAX_WAYS
    assert "jax.jit of tests.serve_grpc.bundles:mlp" in way(measured, "jit").what
    for each in measured.ran:
        assert [cell.batch for cell in each.cells] == [1, 4]
        assert each.mismatch is None and 0 <= each.share_of_allowed <= 1 and each.max_difference < 1e-5
        for cell in each.cells:
            assert cell.calls >= QUICK.rounds
            assert 0 < cell.low_ms <= cell.median_ms <= cell.high_ms
            assert cell.first_call_s > 0
    assert [each.load_s is not None for each in measured.ran] == [False, False, True, True]


def test_the_numbers_belong_to_each_other(measured: Comparison) -> None:
    jit = {cell.batch: cell for cell in way(measured, "jit").cells}
    for each in measured.ran:
        for cell in each.cells:
            assert cell.rows_per_s == pytest.approx(cell.batch / cell.median_ms * 1e3)
            assert cell.times_jit == pytest.approx(cell.median_ms / jit[cell.batch].median_ms)
            assert cell.tokens_per_s is None
    assert all(cell.times_jit == 1 for cell in jit.values())


def test_a_cell_is_the_median_with_its_percentiles() -> None:
    cell = cell_of(8, 1.5, [k / 100 for k in range(101)], 0.25, 16)
    assert (cell.low_ms, cell.median_ms, cell.high_ms) == pytest.approx((100, 500, 900))
    assert (cell.calls, cell.first_call_s, cell.times_jit) == (101, 1.5, 2)
    assert (cell.rows_per_s, cell.tokens_per_s) == (16, 256)


def test_every_round_gives_every_way_a_turn_and_another_begins() -> None:
    turns: list[tuple[str, int]] = []

    class Fake:
        what, load_s = "", None

        def __init__(self, name: str) -> None:
            self.name = name

        def burst(self, batch: int, calls: int) -> list[float]:
            turns.append((self.name, batch))
            return [0.01] * calls

    asked = Asked(batches=(1, 2), seconds=0.12, rounds=3)
    samples = interleave([Fake("a"), Fake("b")], asked, lambda _line: None)  # type: ignore[list-item]
    measured = turns[4:]  # after those that warm up
    assert measured == [
        ("a", 1), ("b", 1), ("a", 2), ("b", 2),
        ("b", 1), ("a", 1), ("b", 2), ("a", 2),
        ("a", 1), ("b", 1), ("a", 2), ("b", 2),
    ]  # fmt: skip
    assert {key: len(seconds) for key, seconds in samples.items()} == dict.fromkeys(
        [("a", 1), ("b", 1), ("a", 2), ("b", 2)], 12
    )


def test_a_row_of_a_sequence_is_its_tokens(sequences: Path) -> None:
    found = compare(sequences / "sequence" / "1", dataclasses.replace(QUICK, batches=(2,)))
    assert found.tokens_per_row == bundles.LONGEST
    for each in found.ran:
        (cell,) = each.cells
        assert cell.tokens_per_s == pytest.approx(cell.rows_per_s * bundles.LONGEST)


def test_a_source_that_cannot_be_imported_is_named_and_the_program_takes_its_place(models: Path) -> None:
    found = compare(models / "echo" / "1", dataclasses.replace(QUICK, batches=(1,)))  # a lambda
    assert [each.name for each in found.ran] == JAX_WAYS
    assert re.search(
        r"jit of the exported program, as the source is not here \(.*<lambda>", way(found, "jit").what
    )


def test_a_source_that_has_changed_is_not_believed(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "mlp", lambda params, x: {"logits": -bundles_mlp(params, x)["logits"]})
    found = compare(models / "mlp" / "1", dataclasses.replace(QUICK, batches=(1,)))
    assert re.search(r"exported program, as .*bundles:mlp: .*'logits' is off by", way(found, "jit").what)


bundles_mlp = bundles.mlp


@pytest.mark.parametrize("template", [False, True])
def test_the_function_of_a_declared_export_is_its_source(
    template: bool, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"x": np.ones((2, 4), np.float32)}
    declared = ExportSpec(
        SignatureSpec(bundles.mlp, {"x": TensorSpec("float32", "b, 4")}, ("logits",), rows),
        params=jax.eval_shape(bundles.mlp_params) if template else None,
    )
    monkeypatch.setitem(sys.modules, "declared_model", SimpleNamespace(spec=declared, none=3))
    path = shutil.copytree(models / "mlp" / "1", tmp_path / "mlp" / "1")
    origin = {"source": "function", "function": "declared_model:spec", "params": "checkpoint"}
    bundle = open_bundle(redo_manifest(path, provenance=origin))
    weights = jax.device_put(bundle.load_weights())
    assert find_source(bundle, "predict", weights, "cpu")[1] == "declared_model:spec"
    gone = open_bundle(redo_manifest(path, provenance={**origin, "function": "declared_model:none"}))
    with pytest.raises(NoSource, match="is a int"):
        find_source(gone, "predict", weights, "cpu")


def test_nothing_is_imported_where_no_source_is_wanted(models: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(models / "mlp" / "1", tmp_path / "mlp" / "1")
    redo_manifest(bundle, provenance={"source": "function", "function": "this.has:side_effects"})
    asked = dataclasses.replace(QUICK, batches=(1,), source=False)
    assert "--no-source was given" in way(compare(bundle, asked), "jit").what
    said = way(compare(bundle, dataclasses.replace(asked, source=True)), "jit").what
    assert "this.has:side_effects cannot be imported here: ModuleNotFoundError" in said


def test_jax_is_as_it_was_before(measured: Comparison) -> None:
    assert jax.config.jax_enable_compilation_cache is True  # type: ignore[attr-defined]
    assert jax.numpy.zeros(1, int).dtype == "int32"


def test_a_saved_model_runs_in_a_process_of_its_own(saved: Callable[[str], Path], tensorflow: str) -> None:
    found = compare(saved("answer"), dataclasses.replace(QUICK, tensorflow_python=tensorflow))
    figures = way(found, "SavedModel")
    assert (figures.reason, figures.mismatch) == (None, None)
    assert figures.max_difference < 1e-5 and figures.load_s > 0
    assert [cell.batch for cell in figures.cells] == [1, 4]
    assert found.sizes["savedmodel"] > 0
    assert found.machine["tensorflow"] == "0.0-stand-in"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("end", "its process ended"),
        ("other", "it has no signature 'predict'; it has other"),
    ],
)
def test_a_saved_model_that_cannot_be_run_is_a_row_with_the_reason(
    how: str, reason: str, saved: Callable[[str], Path], tensorflow: str
) -> None:
    asked = dataclasses.replace(QUICK, batches=(1,), tensorflow_python=tensorflow)
    found = compare(saved(how), asked)
    assert reason in (way(found, "SavedModel").reason or "")
    assert [each.name for each in found.ran] == JAX_WAYS


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("", "tensorflow is not installed here"),
        ("no/such/python", "no/such/python cannot be started: No such file"),
    ],
)
def test_without_tensorflow_the_row_says_what_to_do(
    python: str, reason: str, saved: Callable[[str], Path]
) -> None:
    found = compare(saved("answer"), dataclasses.replace(QUICK, batches=(1,), tensorflow_python=python))
    assert reason in (way(found, "SavedModel").reason or "")


def test_a_way_that_answers_wrongly_is_shown_and_exits_with_3(
    saved: Callable[[str], Path], tensorflow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--batches", "1", "--seconds", "0.01", "--rounds", "1", "--tensorflow-python", tensorflow)
    assert main(["compare", str(saved("lie")), *flags]) == 3
    said = capsys.readouterr()
    assert "WRONG" in said.out and "AOT" in said.out
    assert re.match(
        r"error: SavedModel: .*predict batch 1 on cpu: output 'logits' is off by", said.err.splitlines()[-1]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": ()}, "--batches"),
        ({"batches": (0,)}, "--batches"),
        ({"batches": (4, 4)}, "each once"),
        ({"seconds": 0.0}, "--seconds 0"),
        ({"rounds": 0}, "--rounds 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSpec, match=message):
        Asked(**changes)


def test_a_bundle_that_is_not_there_or_has_no_such_signature(models: Path) -> None:
    with pytest.raises(BundleNotFound, match="no such folder"):
        compare(models / "none", QUICK)
    with pytest.raises(BundleNotFound, match="no signature 'embed'"):
        compare(models / "mlp" / "1", dataclasses.replace(QUICK, signature="embed"))


def test_the_command_writes_what_it_found(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    flags = ("--batches", "1", "--seconds", "0.01", "--rounds", "1", "--json", "--out", str(out))
    assert main(["compare", str(models / "mlp" / "1"), *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((out / "compare.json").read_text()) == printed
    assert printed["schema"] == 1 and printed["model"] == "mlp" and printed["rounds"] == 1
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "compare.html").read_text().startswith("<!doctype html>")


def test_without_matplotlib_there_is_everything_but_the_picture(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    flags = ("--batches", "1", "--seconds", "0.01", "--rounds", "1", "--out", str(tmp_path))
    assert main(["compare", str(models / "mlp" / "1"), *flags]) == 0
    assert "no picture: matplotlib is not installed" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.html", "compare.json"]


def test_an_out_that_is_a_file_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["compare", "none", "--out", str(tmp_path / "file")]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture(scope="module")
def everything(measured: Comparison) -> Comparison:
    """What breaks a page: a name that is a tag, long reasons, a way that is wrong, tokens, sizes of all kinds."""
    evil = "<script>alert(1)</script>\"'><img src=x>" + "0123456789abcdef" * 8
    ways = [
        dataclasses.replace(
            each,
            cells=tuple(
                dataclasses.replace(cell, batch=batch, tokens_per_s=1.5e6)
                for cell in each.cells
                for batch in (cell.batch, cell.batch * 16)
            ),
        )
        for each in measured.ran
    ]
    wrong = dataclasses.replace(ways[1], name="SavedModel", what=evil, mismatch=f"off by 3 {evil}")
    absent = dataclasses.replace(way(measured, "SavedModel"), name="other", reason=evil)
    return dataclasses.replace(
        measured,
        model=evil,
        tokens_per_row=256,
        ways=(*ways, wrong, absent),
        sizes={"program": 18_084, "weights": 5 << 30, "savedmodel": 12},
        machine={**measured.machine, "load_before": 3.5, "tensorflow": "2.21"},
    )


class Outline(html.parser.HTMLParser):
    """Fails on a tag that is not closed; collects text, tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def test_the_page_says_what_the_table_says(everything: Comparison) -> None:
    page = Outline(render(everything))
    for part in (
        "jax.jit of tests.serve_grpc.bundles:mlp", "not run: ", "WRONG: off by 3", "1,500,000", "5.0 GiB", "17.7 KiB",
        "A row is 256 tokens", "other work ran beside it", "tensorflow 2.21", "batch 64",
    ):  # fmt: skip
        assert part in page.text, part
    console = Console(
        width=400, record=True, file=io.StringIO()
    )  # in which no figure is wrapped, however long
    print_table(everything, console)
    told = console.export_text()
    for each in everything.ran:
        for cell in each.cells:
            assert short(cell.rows_per_s) in told
    assert "1,500,000" in told and "WRONG: off by 3" in told and "5.0 GiB" in told


def test_the_page_loads_nothing_and_runs_nothing(everything: Comparison) -> None:
    page = Outline(render(everything))
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert not any(
        name.startswith("on") or name in ("src", "href") for _, attrs in page.tags for name in attrs
    )
    assert any(
        "default-src 'none'" in (attrs.get("content") or "") for tag, attrs in page.tags if tag == "meta"
    )
    assert page.text.count("<script>alert(1)</script>") == 5  # title, heading, what, mismatch, reason
    charts = [attrs["aria-label"] or "" for tag, attrs in page.tags if tag == "svg"]
    assert len(charts) == 2 * len(everything.batches)
    assert all(each.name in chart for chart in charts for each in everything.ran)


def test_the_picture_is_drawn(everything: Comparison) -> None:
    assert draw(everything).startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_all_of_it_within_its_width(
    everything: Comparison, tmp_path: Path, width: int
) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine; the HTML itself is tested above")
    (tmp_path / "page.html").write_text(render(everything))
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe id="f" src="page.html" style="width:{width}px;height:900px;border:0"></iframe><pre id="out"></pre>'
        "<script>f.onload = () => { const d = f.contentDocument;"
        "out.textContent = JSON.stringify({wide: d.documentElement.scrollWidth, inner: d.documentElement.clientWidth,"
        "bars: [...d.querySelectorAll('rect.bar')].filter(bar => bar.getBoundingClientRect().height > 1).length,"
        "cut: [...d.querySelectorAll('svg text')].filter(text => { const b = text.getBBox();"
        "return b.x < 0 || b.x + b.width > text.ownerSVGElement.viewBox.baseVal.width }).length}) }</script>"
    )
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width + 40},1000", "--virtual-time-budget=3000",
    ]  # fmt: skip
    ran = subprocess.run(
        [chromium, *flags, "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    measured = json.loads(ran.stdout.partition('<pre id="out">')[2].partition("</pre>")[0])
    assert measured["inner"] == width
    assert measured["wide"] <= width
    assert measured["bars"] == 2 * len(everything.batches) * len(everything.ran)
    assert measured["cut"] == 0


def test_the_stand_in_is_no_model_of_the_bundle_itself(saved: Callable[[str], Path]) -> None:
    """Its files are in the manifest like every other: a SavedModel that was altered is not run."""
    bundle = saved("answer")
    (bundle / "savedmodel" / "1" / "how").write_text("lie")
    with pytest.raises(Exception, match="savedmodel/1/how"):
        open_bundle(bundle)
