"""Which releases of jaxlib are promised to read a program."""

import dataclasses
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

from converters import describe
from converters.bundle import open_bundle
from converters.errors import BundleError
from converters.manifest_json import parse_manifest
from converters.window import (
    AFTER,
    EARLIER,
    INSIDE,
    RELEASED,
    UNKNOWN,
    Window,
    add_months,
    parse_version,
    refusal,
    released,
    window_ends,
    window_of,
)
from tests.converters.test_bundle import rewrite_manifest


@pytest.mark.parametrize(
    ("jaxlib", "ends"),
    [
        ("0.12.0", date(2027, 4, 19)),
        ("0.12.0.1", date(2027, 4, 21)),
        ("0.8.4", date(2026, 7, 29)),  # not in the table: the release before it, so never too late
        ("0.11.3", date(2027, 3, 17)),
        ("0.12.0.2", date(2027, 4, 21)),
        ("0.4.1", date(2024, 12, 18)),  # before jax.export
        ("0.12.1.dev20261101", date(2027, 5, 1)),  # a nightly says its day
        ("0.12.1.dev20269999", date(2027, 4, 21)),
    ],
)
def test_six_months_from_the_release(jaxlib: str, ends: date, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in RELEASED if parse_version(name) > parse_version("0.12.0.1")]:
        monkeypatch.delitem(RELEASED, name)
    assert window_ends(jaxlib) == ends


def test_a_month_that_is_too_short_gives_its_last_day() -> None:
    assert add_months(date(2026, 8, 31), 6) == date(2027, 2, 28)
    assert add_months(date(2026, 12, 1), 1) == date(2027, 1, 1)


def test_the_locked_jaxlib_is_in_the_table() -> None:
    assert released(version("jaxlib"))[1]
    assert list(RELEASED.values()) == sorted(RELEASED.values())


def test_versions_compare_as_numbers() -> None:
    assert parse_version("0.12.0.1") > parse_version("0.12.0") > parse_version("0.9.2")


def test_a_window_has_a_begin_and_an_end() -> None:
    window = window_of("0.10.1", "2026-11-20")
    assert (window.begins, window.ends) == (date(2026, 4, 29), date(2026, 11, 20))
    assert [window.place(name) for name in ("0.10.0", "0.10.1", "0.10.2", "0.12.0.1")] == [
        EARLIER, INSIDE, INSIDE, INSIDE
    ]  # fmt: skip
    assert window.place("0.13.0.dev20261121") == AFTER
    assert window.place("99.0") == UNKNOWN  # of a day that may be inside


def test_a_release_that_no_table_has_is_judged_by_what_is_certain() -> None:
    """A newer jaxport wrote the bundle: its manifest says when the window ends, or later."""
    newer = window_of("99.0", "2027-07-20")
    assert (newer.released, newer.exact) == (date(2027, 1, 20), False)
    assert newer.place("0.12.0.1") == EARLIER
    assert newer.place("99.0") == INSIDE
    assert newer.place("99.1") == UNKNOWN
    assert newer.place("0.99.0.dev20280101") == UNKNOWN  # the window may end later
    old = window_of("0.8.0", "2026-04-15")
    assert old.place("99.0") == AFTER  # it came after all that are known


def told(window: Window, reader: str, monkeypatch: pytest.MonkeyPatch, *, of_a_run: bool = True) -> str:
    monkeypatch.setattr("converters.window.installed", lambda _: reader)
    return refusal(window, reader, "m/1", of_a_run=of_a_run)


def test_a_refusal_says_what_reads_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    now = window_of("0.12.0.1", "2027-04-21")
    line = told(now, "0.11.2", monkeypatch)
    assert line == (
        "m/1: jax 0.11.2, released on 2026-09-17, is too old for this program of jaxlib 0.12.0.1, for releases from "
        "2026-09-30 to 2027-04-21: read it with jax 0.12.0.1, or export it again with this one"
    )
    line = told(window_of("0.9.0", "2026-07-20"), "0.12.0", monkeypatch)
    assert line.endswith("to 2026-07-20: jaxport refresh m/1, or read it with jax 0.11.0")
    assert "damaged, or JAX at fault" in told(now, "0.12.0", monkeypatch)
    line = told(now, "99.0", monkeypatch)
    assert "jax 99.0, released after 2026-10-21, cannot read" in line and "may be the reason" in line
    line = told(window_of("99.0", "2027-07-20"), "99.1", monkeypatch)
    assert "to 2027-07-20 or later" in line and "read it with jax 99.0" in line


def test_what_comes_of_a_function_is_exported_again_and_not_refreshed(
    iris_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, now = window_of("0.9.0", "2026-07-20"), window_of("0.12.0.1", "2027-04-21")
    for window, reader in ((old, "0.12.0"), (now, "0.12.0"), (now, "99.0")):
        line = told(window, reader, monkeypatch, of_a_run=False)
        assert "refresh" not in line and "export its function again with this one, or read it with" in line
    bundle = open_bundle(iris_bundle)
    assert not bundle.manifest.of_a_run and "refresh" not in describe.summary(bundle)
    program = bundle.path / "programs" / "predict.jaxexport"
    monkeypatch.setattr("converters.bundle.Bundle.read", lambda self, name: program.read_bytes()[:200])
    with pytest.raises(BundleError, match="export its function again"):
        bundle.exported()
    run = dataclasses.replace(bundle.manifest, provenance={"source": "run"})
    assert "refresh before upgrading JAX" in describe.window(run)
    with pytest.raises(BundleError, match=f"jaxport refresh {iris_bundle}"):
        dataclasses.replace(bundle, manifest=run).exported()


def test_inspect_says_what_is_not_known(iris_bundle: Path, tmp_path: Path) -> None:
    data = (iris_bundle / "manifest.json").read_text()
    written = data.replace(f'"jaxlib_version": "{version("jaxlib")}"', '"jaxlib_version": "99.0"')
    assert written != data
    manifest = parse_manifest(written.encode(), "m")
    assert "at least: export it again before upgrading JAX past that" in describe.window(manifest)
    assert manifest.window.exact is False
    manifest = open_bundle(iris_bundle).manifest
    assert describe.window(manifest).startswith("in every jaxlib released from 20")
    assert describe.here(manifest).endswith("reads it")


@pytest.mark.parametrize(
    "change",
    [
        {"window_ends": "0001-01-01"},
        {"jaxlib_version": 5},
        {"jaxlib_version": ""},
        {"jaxlib_version": "1" * 5000},
        {"jaxlib_version": "\ud800"},
    ],
)
def test_a_manifest_without_a_window_is_refused(
    change: dict[str, object], iris_bundle: Path, tmp_path: Path
) -> None:
    import shutil

    path = Path(shutil.copytree(iris_bundle, tmp_path / "iris" / "1"))
    rewrite_manifest(path, lambda m: m.update(change))
    with pytest.raises(BundleError, match=r"manifest.json: a field is missing or malformed"):
        open_bundle(path)
