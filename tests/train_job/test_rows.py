"""metrics.jsonl: what is read of a damaged one, and what a start that writes it anew keeps."""

from pathlib import Path

import pytest

from train_job.errors import EnvironmentUnfit
from train_job.metrics import MetricsLog
from train_job.rows import read_metrics, read_metrics_file

GOOD = [b'{"step": %d, "time": 1.0}\n' % step for step in (4, 8, 12)]
BAD = [
    b'{"step": 5, "ti\n',
    b"[1]\n",
    b'{"step": 5.0}\n',
    b'{"step": true}\n',
    b'{"time": 1.0}\n',
    b'{"step": 5, "\xff": 1}\n',
    b"[" * 100_000 + b"\n",
]
TORN = b'{"step": 16, "ti'


def steps(run_dir: Path) -> list[int]:
    return [row["step"] for row in read_metrics(run_dir)]


@pytest.mark.parametrize("bad", BAD, ids=lambda line: repr(line[:16]))
def test_behind_a_damaged_line_the_rows_go_on(bad: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(GOOD[0] + bad + b"\n" + GOOD[1] + TORN)
    found = read_metrics_file(tmp_path)
    assert ([row["step"] for row in found.rows], found.damaged, found.torn) == ([4, 8], 1, True)


def test_a_start_keeps_a_damaged_file_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.jsonl"
    for number, bad in ((1, BAD[0]), (2, BAD[1] + BAD[2])):
        path.write_bytes(content := bad + b"".join(GOOD) + TORN)
        with MetricsLog(tmp_path, 8) as log:
            assert [row["step"] for row in log.earlier] == [4, 8]
            log.append({"step": 9, "time": 1.0})
        assert steps(tmp_path) == [4, 8, 9]
        assert (tmp_path / f"metrics.jsonl.damaged-{number}").read_bytes() == content
        lines = "1 line is" if number == 1 else "2 lines are"
        assert capsys.readouterr().out == (
            f"{path}: {lines} damaged and left out; the file as it was is kept as {path.name}.damaged-{number}\n"
        )


def test_of_a_row_that_a_kill_cut_short_nothing_is_kept_or_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(GOOD) + TORN)
    with MetricsLog(tmp_path, 12):
        assert steps(tmp_path) == [4, 8, 12]
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]


def test_rows_that_the_volume_does_not_give_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(EnvironmentUnfit, match=r"metrics\.jsonl: cannot be read: .*; make it a file"):
        MetricsLog(tmp_path, 4)
    assert (tmp_path / "metrics.jsonl").is_dir()
