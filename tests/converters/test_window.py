"""Until when a program loads."""

from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

from converters.bundle import open_bundle
from converters.describe import window
from converters.window import RELEASED, add_months, parse_version, window_ends


@pytest.mark.parametrize(
    ("jaxlib", "ends"),
    [
        ("0.12.0", date(2027, 4, 19)),
        ("0.12.0.1", date(2027, 4, 21)),
        ("0.11.3", date(2027, 3, 17)),  # not in the table: the release before it, so never too late
        ("0.13.1", date(2027, 4, 21)),
        ("0.12.1.dev20261101", date(2027, 4, 21)),
        ("0.4.30", date(2027, 3, 17)),
    ],
)
def test_six_months_from_the_release(jaxlib: str, ends: date) -> None:
    assert window_ends(jaxlib) == ends


def test_a_month_that_is_too_short_gives_its_last_day() -> None:
    assert add_months(date(2026, 8, 31), 6) == date(2027, 2, 28)
    assert add_months(date(2026, 12, 1), 1) == date(2027, 1, 1)


def test_the_locked_jaxlib_is_in_the_table() -> None:
    assert version("jaxlib") in RELEASED


def test_versions_compare_as_numbers() -> None:
    assert parse_version("0.12.0.1") > parse_version("0.12.0") > parse_version("0.9.2")


def test_the_message_is_about_upgrading_and_not_about_tomorrow(iris_bundle: Path) -> None:
    manifest = replace(open_bundle(iris_bundle).manifest, window_ends="2027-04-21")
    assert "refresh before upgrading JAX past that" in window(manifest, date(2027, 4, 21))
    assert "a newer one may refuse it" in window(manifest, date(2027, 4, 22))
