"""Versions change under load and nobody notices: a small run of `python -m benchmarks.updates`.

tests/faults/full has the whole one.
"""

from pathlib import Path

from benchmarks.updates import FAILED, PROGRAM, ROLLBACK, WEIGHTS, Change, Counts, Report, run, versions_of


def test_swaps_rollbacks_and_failed_loads_under_load_cost_no_request_and_no_bit(tmp_path: Path) -> None:
    """The label `stable` moves while clients ask by it and by default; damaged canaries come and go."""
    counts = Counts(weights=1, programs=1, failed=3, clients=8, processes=1, quiet=0.1)
    report = run(tmp_path, counts)
    assert report.answers.faults == []
    assert report.answers.failed == report.answers.wrong == report.stale == 0
    assert report.compiles == report.request_compiles == 0
    kinds = [change.kind for change in report.changes[1:] if change.kind != FAILED]
    assert sorted(kinds) == sorted([WEIGHTS, PROGRAM, ROLLBACK])
    assert len(report.changes) == 1 + 3 + 3
    assert [change.compiled for change in report.changes if change.kind == PROGRAM] == [True]
    used = {change.version for change in report.changes}
    assert used == set(report.answers.versions) == {1, 2, 3}, "every version answered somebody"
    assert len(report.answers.sent) > 100


def test_a_stale_answer_would_be_seen() -> None:
    """Version 2 replaced version 1 between 10 and 11 s."""
    report = Report([Change("start", 0, 0, 1, True), Change(WEIGHTS, 10, 11, 2, False)])
    for sent, received, version in ((1, 2, 1), (9, 10.5, 2), (10.5, 10.9, 1), (12, 13, 2)):
        report.answers.sent.append(sent)
        report.answers.received.append(received)
        report.answers.versions.append(version)
    assert report.stale == 0
    for sent, received, version in ((8, 9, 2), (12, 13, 1), (12, 13, 7)):
        report.answers.sent.append(sent)
        report.answers.received.append(received)
        report.answers.versions.append(version)
    assert report.stale == 3


def test_the_full_run_is_what_it_says() -> None:
    swaps = Counts().swaps
    assert (swaps.count(WEIGHTS), swaps.count(PROGRAM), swaps.count(ROLLBACK)) == (20, 3, 1)
    assert swaps[-3:] == [WEIGHTS, WEIGHTS, ROLLBACK], "the roll-back differs in weights only"
    programs = versions_of(swaps)
    assert len(programs) == 24 and max(programs.values()) == 3
