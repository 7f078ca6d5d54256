"""What status, logs and cancel say of the Jobs that are there."""

import json
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from jaxport.cluster.outcome import verdict
from jaxport.cluster.progress import Progress, read_progress
from jaxport.commands.status import age
from tests.deploy.objects import Object
from tests.jaxport.cluster.conftest import Run
from tests.jaxport.cluster.fake_api import FakeCluster, JobScript, Log, eventually
from train_job.progress import interval_line

LINE = interval_line(
    {"step": 40, "train_loss": 2.61, "val_loss": 2.7, "lr": 0.001, "tokens_per_s": 12345.0}, 300, "tokens"
)


@pytest.fixture
def played(run: Run, cluster: FakeCluster):
    """Everything is submitted; what the Jobs then do is the test's."""
    started: dict[str, JobScript] = {}
    for stage in ("train", "export", "warm"):
        cluster.scripts[f"jaxport-{stage}"] = lambda job, stage=stage: started.update({stage: job})
    run("submit", "all", "--no-follow")
    eventually(lambda: len(started) == 3)
    return started


def status(run: Run) -> dict[str, Object]:
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    out = run("status", "--json").out
    return {row["stage"]: row for row in json.loads(out, parse_constant=refused)}


def test_a_training_is_told_by_what_its_trainer_prints(played: dict[str, JobScript], run: Run) -> None:
    train = played["train"]
    first = train.pod()
    train.ends(first, 75, disrupted=True)
    time.sleep(1)  # a pod's age is in seconds
    train.log(train.pod(), "run  tiny", LINE, "a line of another kind")
    row = status(run)["train"]
    assert (row["run"], row["phase"], row["pods"], row["wanted"]) == ("tiny", "Running", 1, 1)
    assert (row["step"], row["steps"], row["metric"], row["value"]) == (40, 300, "val_loss", 2.7)
    assert (row["preempted"], row["failed"]) == (1, 0)
    train.log(train.pod(), LINE.replace("2.7000", "nan"))
    row = status(run)["train"]
    assert (row["step"], row["metric"], row["value"]) == (40, "val_loss", None)


def test_phases(played: dict[str, JobScript], run: Run, cluster: FakeCluster) -> None:
    train, export, warm = played["train"], played["export"], played["warm"]
    assert {stage: row["phase"] for stage, row in status(run).items()} == dict.fromkeys(
        ("train", "export", "warm", "serve"), "Waiting"
    )
    waiting = train.pod(running=False)
    train.unschedulable(waiting, "0/3 nodes are available")
    export.runs_through("error: no such run", code=2)
    warm.runs_through("warmed models=1")
    rows = status(run)
    assert rows["train"]["detail"] == "0/3 nodes are available"
    assert rows["export"]["phase"] == "Failed"
    assert rows["export"]["detail"] == "PodFailurePolicy, exit code 2: error: no such run"
    assert rows["warm"]["phase"] == "Complete" and rows["warm"]["age"] >= 0
    train.ends(waiting, 75)
    assert status(run)["train"]["phase"] == "Preempted"
    cluster.modify(train.path, lambda job: job["spec"].update(suspend=True))
    assert status(run)["train"]["phase"] == "Suspended"
    path = "/apis/apps/v1/namespaces/jaxport/deployments/jaxport-serve"
    cluster.modify(
        path, lambda each: (each["spec"].update(replicas=2), each.update(status={"readyReplicas": 1}))
    )
    assert status(run)["serve"]["phase"] == "Partly ready" and status(run)["serve"]["pods"] == 1


def test_the_table_has_it_all(played: dict[str, JobScript], run: Run) -> None:
    train = played["train"]
    train.log(train.pod(), LINE)
    played["export"].runs_through("error: no such run", code=2)
    said = run("status").out
    assert [line.split()[0] for line in said.splitlines() if line.strip() and not line.startswith(" ")] == [
        "stage",
        "train",
        "export",
        "warm",
        "serve",
    ]
    for part in ("40/300", "val_loss 2.7", "Running", "PodFailurePolicy, exit code 2: error: no such run"):
        assert part in said


def test_watching_goes_on_until_it_is_interrupted(
    played: dict[str, JobScript], run: Run, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter((None, None))

    def sleep(_: float) -> None:
        if next(looks, True):
            raise KeyboardInterrupt

    monkeypatch.setattr("jaxport.commands.status.time", SimpleNamespace(sleep=sleep))
    cluster.refuse("GET", "/pods$", 503, "apiserver is shutting down", times=1)
    done = run("status", "--watch")
    assert done.code == 130 and done.out.count("stage ") == 2
    assert done.err.count("cannot answer") == 1


def test_nothing_there_is_said(run: Run) -> None:
    done = run("status", "--namespace", "elsewhere")
    assert done.code == 0 and "nothing of jaxport in namespace elsewhere" in done.out


def test_progress_is_read_from_the_trainers_own_lines() -> None:
    assert read_progress([LINE]) == Progress(40, 300, "val_loss", 2.7)
    assert read_progress([]) == Progress()
    assert read_progress([LINE, "preempted: saved step 60 of 300; start again to go on"]) == Progress(
        60, 300, "val_loss", 2.7
    )
    assert read_progress(["work/runs/tiny: finished, 300 of 300 steps"]).step == 300
    assert read_progress(
        [LINE, "done: bits_per_byte 2.938 (byte bigram: 3.634) after 300 steps"]
    ) == Progress(300, 300, "bits_per_byte", 2.938)
    row = {"step": 7, "train_loss": float("nan"), "lr": 0.001, "tokens_per_s": 1.0}
    assert read_progress([interval_line(row, 9, "tokens")]).metric == "train_loss"


def test_ages() -> None:
    assert [age(seconds) for seconds in (5, 95, 3700, 90000)] == ["5s", "1m35s", "1h1m", "1d1h"]


def test_logs_of_the_newest_pod(played: dict[str, JobScript], run: Run) -> None:
    train = played["train"]
    first = train.pod()
    train.log(first, "of the first")
    train.ends(first, 75)
    time.sleep(1)
    train.log(train.pod(), "one", "two", "three")
    assert run("logs", "train").out == "one\ntwo\nthree\n"
    assert run("logs", "train", "--tail", "1").out == "three\n"
    waiting = run("logs", "export")
    assert waiting.code == 0 and waiting.err == "job/jaxport-export: no pod yet\n"


def test_logs_follow_to_the_end(played: dict[str, JobScript], run: Run) -> None:
    played["export"].runs_through("error: no such run", code=2)
    done = run("logs", "export", "--follow")
    assert done.code == 2 and done.out == "error: no such run\n"


def test_logs_of_every_server(played: dict[str, JobScript], run: Run, cluster: FakeCluster) -> None:
    refused = run("logs", "serve", "--follow")
    assert refused.code == 2 and "kubectl -n jaxport logs -f" in refused.error
    assert run("logs", "serve").code == 2
    labels = {"app.kubernetes.io/name": "jaxport", "app.kubernetes.io/component": "serve"}
    for name in ("one", "two"):
        state = [{"name": "serve", "state": {"running": {}}}]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "jaxport", "labels": labels},
        }
        cluster.create(
            "/api/v1/namespaces/jaxport/pods",
            pod | {"status": {"phase": "Running", "containerStatuses": state}},
        )
        cluster.logs[name] = Log([(1, f"ready {name}")])
    assert run("logs", "serve").out == "[one] ready one\n[two] ready two\n"


def test_runs_are_told_apart(played: dict[str, JobScript], run: Run) -> None:
    run("submit", "train", "--preset", "nano", "--no-follow")
    several = run("logs", "train")
    assert several.code == 2
    assert (
        "2 train Jobs are there: job/jaxport-train (run tiny), job/jaxport-train-nano (run nano); say which by --run"
        in several.error
    )
    assert run("logs", "train", "--run", "tiny").code == 0
    assert run("logs", "train", "--run", "nano").code == 0
    missing = run("cancel", "train", "--run", "bard")
    assert (
        missing.code == 2
        and "no train Job of the run bard in namespace jaxport; there: job/jaxport-train (run tiny)"
        in missing.error
    )


def test_cancel_stops_and_says_what_stays(
    played: dict[str, JobScript], run: Run, cluster: FakeCluster
) -> None:
    played["train"].pod()
    done = run("cancel", "train", "--wait")
    assert done.code == 0 and "runs/tiny stays on the volume" in done.out
    assert cluster.of_kind("pods") == [] and len(cluster.of_kind("jobs")) == 2
    assert run("cancel", "train").code == 2
    played["export"].runs_through("wrote")
    assert "job/jaxport-export deleted; bundles that are written stay" in run("cancel", "export").out
    done = run("cancel", "all")
    assert done.code == 0 and "job/jaxport-warm is being stopped" in done.out


def test_a_verdict_needs_an_end() -> None:
    assert (
        verdict(
            {"metadata": {"name": "x"}, "status": {"conditions": [{"type": "Failed", "status": "False"}]}}, []
        )
        is None
    )


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        (lambda job: job.fails("DeadlineExceeded", "Job was active longer than specified deadline"), "its time (activeDeadlineSeconds) was up, and Kubernetes has deleted its pods"),
        (lambda job: job.completes(), "it is over, and its pods are gone"),
        (lambda job: job.cluster.modify(job.path, lambda each: each["spec"].update(suspend=True)), "it is suspended"),
        (lambda job: None, "no pod yet"),
    ],
    ids=["out of time", "complete", "suspended", "new"],
)  # fmt: skip
def test_logs_of_a_job_without_pods_say_why_there_are_none(
    run: Run, with_all: FakeCluster, fate: Callable[[JobScript], None], said: str
) -> None:
    assert run("submit", "train", "--no-follow").code == 0
    fate(JobScript(with_all, with_all.job("jaxport-train")))
    done = run("logs", "train")
    assert (
        (done.code, done.out) == (0, "") and done.err.startswith("job/jaxport-train: ") and said in done.err
    )
