"""A bounded, seeded run of tests/faults/mutations.py, whose command does a million."""

import time

from tests.faults.mutations import in_process

SECONDS = 60.0


def test_every_mutation_gets_what_a_fresh_parse_gives() -> None:
    """Some 8,000 requests through parsers, router and queue; JSON among them."""
    started = time.monotonic()
    codes = in_process(8000, seed=20)
    assert time.monotonic() - started < SECONDS
    assert codes["OK"] > 1000, codes
    assert codes["INVALID_ARGUMENT"] > 1000, codes
    assert codes["NOT_FOUND"] > 100, codes
    assert codes["JSON OK"] > 30, codes
    assert codes["JSON INVALID_ARGUMENT"] > 100, codes
