"""Versions change under load and nobody notices: what `python -m benchmarks.updates` counts, as often as it does."""

from pathlib import Path

from benchmarks.updates import FAILED, PROGRAM, ROLLBACK, WEIGHTS, Counts, run


def test_swaps_rollbacks_and_failed_loads_under_load_cost_no_request_and_no_bit(tmp_path: Path) -> None:
    """The label `stable` moves while clients ask by it and by default; damaged canaries come and go, and one that vanishes."""
    report = run(tmp_path, Counts(failed=6, clients=8, processes=1, quiet=0.1))
    assert report.answers.faults == []
    assert report.answers.failed == report.answers.wrong == report.stale == 0
    assert report.compiles == report.request_compiles == 0
    kinds = sorted(change.kind for change in report.changes[1:])
    assert kinds == sorted([WEIGHTS] * 20 + [PROGRAM] * 3 + [ROLLBACK] + [FAILED] * 6)
    assert [change.compiled for change in report.changes if change.kind == PROGRAM] == [True] * 3
    used = {change.version for change in report.changes}
    assert used == set(report.answers.versions) == set(range(1, 25)), "every version answered somebody"
