"""jaxport runs: what folders of runs say, however damaged, and how two of them differ."""

import fcntl
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jaxport.sparklines import chart, spread
from tests.conftest import Told
from train_job.listing import common_step, differences, figures_at, read
from train_job.runs import RunRecord, write_run, writing

NOW = time.time()


def make(root: Path, name: str, rows: list[dict[str, Any]], **changed: Any) -> Path:
    """A run of 300 steps; `changed` fields of its record, or settings."""
    folder = root / "runs" / name
    (folder / "checkpoints" / "100").mkdir(parents=True)
    settings = {"steps": 300, "learning_rate": changed.pop("learning_rate", 0.003), "eval_every": 50}
    record = {
        "run": name, "preset": "digits", "settings": settings, "fingerprint": {"model.kind": "MlpConfig", **settings},
        "data": {"name": "digits", "sha256": "ab" * 32, "bytes": 9}, "baselines": {"val_accuracy": 0.1},
        "versions": {"jax": "1.0"}, "created_at": "2026-01-01T00:00:00+00:00", "starts": 2, "headline": "val_accuracy",
    }  # fmt: skip
    write_run(folder, RunRecord(**{**record, **changed}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(*steps: int, loss: float = 1.0) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "time": NOW - 60,
            "val_loss": loss / step,
            "val_accuracy": 0.9,
            "images_per_s": 1234.5,
            "goodput": 0.5,
        }
        for step in steps
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """fast is finished; slow is not, with a torn line; early has no row yet; five folders are damaged in other ways."""
    make(tmp_path, "fast", rows(50, 100, 150), finished=True)
    slow = make(tmp_path, "slow", rows(100, 200, loss=3.0), learning_rate=0.001)
    with (slow / "metrics.jsonl").open("a") as log:
        log.write('{"step": 300, "val_l')
    make(tmp_path, "early", [])
    for name, content in {
        "empty": "",
        "list": "[1]",
        "text": '"run"',
        "newer": '{"schema_version": 9}',
        "deep": "[" * 100_000,
    }.items():
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(content)
    return tmp_path


def test_a_line_for_each_run_whatever_is_damaged(root: Path, told: Told) -> None:
    with (root / "runs" / "fast" / "metrics.jsonl").open("ab") as log:
        log.write(b'\xff\xfe\n7\n{"step": "x"}\n{"st')
    with writing(root / "runs" / "slow"):
        code, out, err = told("runs", "--root", str(root))
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["run"].split() == [
        "run",
        "preset",
        "state",
        "metric",
        "val_loss",
        "speed",
        "goodput",
        "starts",
        "updated",
        "size",
    ]
    assert (
        "finished" in lines["fast"]
        and "val_accuracy 0.9" in lines["fast"]
        and "1,234 images/s" in lines["fast"]
    )
    assert "running 200/300" in lines["slow"] and "50%" in lines["slow"]
    assert re.search(r" \d+m\d+s ", lines["slow"]), "how long ago it last said something"
    assert "stopped 100/300" in lines["early"], "what is saved is done"
    assert f"fast: {root}/runs/fast/metrics.jsonl: 4 of 7 lines damaged and left out\n" in out
    assert "slow: " not in out, "of a run that goes on, a row that is not whole yet is no damage"
    for name in ("empty", "list", "text", "newer", "deep"):
        assert f"{name}: {root}/runs/{name}/run.json: " in out
    assert out.index("early") < out.index("fast") < out.index("newer"), (
        "the latest first, what cannot be read last"
    )


def test_who_asks_keeps_no_one_from_writing(root: Path) -> None:
    """A start that comes while the lock is looked at waits a moment for it."""
    with (root / "runs" / "fast" / ".lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.03, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        with writing(root / "runs" / "fast"):
            assert read(root / "runs" / "slow").state == "stopped"


def test_a_field_that_a_later_jaxport_added_is_passed_over(root: Path) -> None:
    record = root / "runs" / "slow" / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "mood": "good"}))
    assert read(root / "runs" / "slow").state == "stopped"


def test_a_record_without_a_date_is_said_to_be_one(root: Path, told: Told) -> None:
    record = root / "runs" / "slow" / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "created_at": "lately"}))
    code, out, err = told("runs", "--root", str(root))
    assert code == 0 and "Invalid isoformat string: 'lately'" in out + err


def test_a_finished_run_without_its_rows_says_why_nothing_is_shown(root: Path, told: Told) -> None:
    (root / "runs" / "fast" / "metrics.jsonl").unlink()
    code, out, err = told("runs", "--root", str(root))
    assert code == 0 and "fast/metrics.jsonl: is missing or empty, so that nothing is known of" in out + err


def test_json_has_the_same_for_programs(root: Path, told: Told) -> None:
    make(root, "bad", [{"step": 1, "time": NOW, "val_loss": float("nan")}])
    record = root / "runs" / "bad" / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "settings": {"odd": [float("inf")]}}))
    code, out, _ = told("runs", "--root", str(root), "--json")
    found = {each["run"]: each for each in json.loads(out)}
    assert code == 0 and len(found) == 9
    assert (
        found["slow"]["figures"]["images_per_s"] == 1234.5
        and found["slow"]["settings"]["learning_rate"] == 0.001
    )
    assert (found["slow"]["step"], found["slow"]["steps"], found["slow"]["starts"]) == (200, 300, 2)
    assert found["bad"]["figures"]["val_loss"] is None
    assert found["newer"]["state"] == "unreadable" and "schema_version is 9" in found["newer"]["why"]


def test_two_runs_side_by_side_at_the_last_step_that_both_have(root: Path, told: Told) -> None:
    code, out, err = told("runs", "fast", "slow", "--root", str(root))
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines() if line.startswith("learning_rate")] == [
        ["learning_rate", "0.003", "0.001"]
    ]
    assert "eval_every" not in out
    after = out[out.index("at step 100") :].splitlines()
    assert after[1].split() == ["val_loss", "0.01", "0.03"]
    assert "val_loss up to step 200, from 0.006667 to 0.03" in out and "█" in out
    assert "fast: 0.02 at 50, 0.006667 at 150; lowest 0.006667 at 150" in out


def test_what_is_not_comparable_is_said(root: Path, told: Told) -> None:
    runs = [read(root / "runs" / name) for name in ("fast", "early")]
    assert common_step(runs) is None and differences(runs) == {}
    assert "no step that all of them have a row of" in told("runs", "fast", "early", "--root", str(root))[1]
    assert figures_at([runs[0]], 50)["goodput"] == [0.5]
    assert told("runs", "fast", "--root", str(root))[0] == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot be read: "), (b"x\n\x00\x00", "2 of 2 lines damaged and left out")],
    ids=["folder", "damaged"],
)
def test_rows_that_cannot_be_read_are_named(content: bytes | None, why: str, root: Path, told: Told) -> None:
    path = root / "runs" / "fast" / "metrics.jsonl"
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    beside = told("runs", "fast", "slow", "--root", str(root))[1]
    for out in (told("runs", "--root", str(root))[1], beside):
        assert f"fast: {path}: {why}" in out
    assert "no figures to compare: see above" in beside and "no step that all" not in beside
    assert why in read(root / "runs" / "fast").as_json()["why"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"baselines": 7}, "baselines has to be an object"), ({"headline": []}, "headline has to be a text")],
)
def test_a_record_with_a_field_of_another_kind_is_unreadable(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in read(make(tmp_path, "odd", [], **changed)).why


def test_a_whole_number_that_no_float_holds_is_no_figure(tmp_path: Path) -> None:
    run = read(make(tmp_path, "huge", [{"step": 1, "time": 10**400, "val_loss": 10**400}]))
    assert (run.updated, run.figures()) == (None, {"val_loss": None})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none",), "no run 'none' in .*; present: deep, early, empty, fast"),
        (("../fast",), "'../fast' is no name of a run; present: "),
        (("newer",), "schema_version is 9"),
    ],
)
def test_a_run_that_is_not_there_is_named(
    arguments: tuple[str, ...], said: str, root: Path, told: Told
) -> None:
    code, _, err = told("runs", *arguments, "--root", str(root))
    assert code == 2
    assert re.search(said, err)


def test_a_root_without_runs(tmp_path: Path, told: Told) -> None:
    assert told("runs", "--root", str(tmp_path))[:2] == (
        0,
        f"no runs in {tmp_path}/runs; jaxport train --preset nano makes one\n",
    )
    code, _, err = told("runs", "--root", str(tmp_path / "nowhere"))
    assert code == 2 and "--root: found" in err


def test_a_curve_is_drawn_over_the_steps_that_it_has() -> None:
    values = spread([(10, 4.0), (20, 2.0), (30, 1.0)], width=8, last=40)
    assert values == [None, 4.0, 4.0, 2.0, 2.0, 1.0, None, None]
    assert chart(values, 2, 1.0, 4.0) == [" ██     ", " ██▆▆▁  "]
    assert chart([1.0, 1.0], 1, 1.0, 1.0) == ["▁▁"]
