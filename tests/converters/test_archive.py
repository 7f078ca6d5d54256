"""Bundles of past JAX versions answer as they did, or are refused in one line that says what to do."""

import json
from importlib.metadata import version as installed
from pathlib import Path

import jax
import pytest

from converters.bundle import Bundle, open_bundle
from converters.errors import OutsideWindow
from converters.run import compiled_runner
from converters.window import AFTER, INSIDE
from jaxport.cli import main
from tests.archive import OUTSIDE, REFUSED, unpacked, versions


def answers(bundle: Bundle) -> int:
    """Runs every golden on the CPU, and returns how many. Raises GoldenMismatch, OutsideWindow."""
    run = compiled_runner(bundle.exported(), jax.device_put(bundle.load_weights()))
    for golden in bundle.goldens():
        bundle.check_golden("predict", golden, run(golden.inputs), "cpu")
    return len(bundle.goldens())


@pytest.mark.parametrize("version", [v for v in versions() if v != REFUSED])
@pytest.mark.parametrize("model", ["mlp", "attention"])
def test_what_an_older_jax_wrote_answers_as_it_did(version: str, model: str, tmp_path: Path) -> None:
    """Outside of its window a program may be refused, and then in one way."""
    bundle = open_bundle(unpacked(version, tmp_path) / model / "1")
    assert bundle.manifest.jaxlib_version == version
    assert bundle.manifest.platforms == ("cpu", "cuda")
    try:
        assert answers(bundle) == 2
    except OutsideWindow:
        assert bundle.manifest.window.place(installed("jaxlib")) == AFTER


def test_the_archive_has_programs_on_both_sides_of_the_window() -> None:
    assert {REFUSED, OUTSIDE} < set(versions())


def test_what_is_too_old_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = unpacked(REFUSED, tmp_path) / "mlp" / "1"
    assert main(["verify", str(path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}: jax {jax.__version__}, released on ")
    assert "cannot read this program of jaxlib 0.8.0, for releases from 2025-09-24 to 2026-04-15: " in line
    assert "export its function again with this one, or read it with jax 0.9.2 (" in line
    with pytest.raises(OutsideWindow) as refused:
        open_bundle(path).exported()
    assert f"error: {refused.value}" == line


def test_inspect_says_which_releases_may_refuse_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unpacked(OUTSIDE, tmp_path) / "mlp" / "1"
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert (
        "in every jaxlib released from 2026-02-25 to 2026-09-18: export it again before upgrading JAX" in text
    )
    assert "may refuse   0.9.0.1 and older; 0.12.0, 0.12.0.1" in text
    assert "may refuse it: newer than the window" in text
    assert main(["inspect", str(path), "--json"]) == 0
    loads = json.loads(capsys.readouterr().out)["loads"]
    assert (loads["released"], loads["begins"], loads["ends"]) == ("2026-03-18", "2026-02-25", "2026-09-18")
    assert {"0.9.0.1", "0.12.0"} <= set(loads["may_refuse"]) and "0.11.2" not in loads["may_refuse"]
    assert loads["here"] == {"jaxlib": installed("jaxlib"), "place": AFTER}


def test_what_this_jax_writes_is_inside_of_its_own_window(iris_bundle: Path) -> None:
    assert open_bundle(iris_bundle).manifest.window.place(installed("jaxlib")) == INSIDE
