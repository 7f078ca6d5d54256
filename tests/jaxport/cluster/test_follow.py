"""From the Job's first pod to its end: every line once, and the exit code of what became of it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from jaxport.cluster.followed import FollowSettings
from jaxport.cluster.log_stream import Position
from tests.jaxport.cluster.conftest import Run
from tests.jaxport.cluster.fake_api import FakeCluster, JobScript, eventually

TRAIN = ("submit", "train", "--follow", "--patience", "1")
STEPS = [f"step {step}/300  train_loss 2.{step:04d}  lr 1.00e-03" for step in range(20, 301, 20)]


def test_a_job_that_completes_is_exit_code_0_with_every_line(run: Run, with_all: FakeCluster) -> None:
    with_all.scripts["jaxport-train"] = lambda job: job.runs_through(
        "run  tiny", "", *STEPS, "done: x 1.5 after 300 steps"
    )
    done = run(*TRAIN)
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["run  tiny", "", *STEPS, "done: x 1.5 after 300 steps"]
    assert done.err.splitlines() == ["job/jaxport-train created", "job/jaxport-train complete"]


@pytest.mark.parametrize(
    ("code", "reason", "ends_as"),
    [(2, "PodFailurePolicy", 2), (3, "PodFailurePolicy", 3), (4, "BackoffLimitExceeded", 4), (1, "BackoffLimitExceeded", 3), (137, "BackoffLimitExceeded", 3)],
)  # fmt: skip
def test_a_job_that_fails_is_the_exit_code_of_its_container(
    code: int, reason: str, ends_as: int, run: Run, with_all: FakeCluster
) -> None:
    with_all.scripts["jaxport-train"] = lambda job: job.runs_through(
        "error: the reason", code=code, reason=reason
    )
    done = run(*TRAIN)
    assert done.code == ends_as
    assert done.error == f"job/jaxport-train failed ({reason}, exit code {code}): error: the reason"


def test_a_container_that_was_killed_for_memory_says_so(run: Run, with_all: FakeCluster) -> None:
    def script(job: JobScript) -> None:
        pod = job.pod()
        job.ends(pod, 137, reason="OOMKilled")
        job.fails("BackoffLimitExceeded")

    with_all.scripts["jaxport-train"] = script
    assert "exit code 137, OOMKilled" in run(*TRAIN).error


def test_a_pod_that_is_preempted_is_followed_by_the_next(run: Run, with_all: FakeCluster) -> None:
    def script(job: JobScript) -> None:
        first = job.pod()
        job.log(first, *STEPS[:3], "preempted: saved step 60 of 300; start again to go on")
        eventually(lambda: with_all.seen("GET", f"{first}/log"))
        job.ends(first, 75, disrupted=True)
        second = job.pod()
        job.log(second, *STEPS[3:])
        job.ends(second, 0)
        job.completes()

    with_all.scripts["jaxport-train"] = script
    done = run(*TRAIN)
    assert done.code == 0
    assert [line for line in done.out.splitlines() if line.startswith("step")] == STEPS
    assert "jaxport-train-0-00001 preempted (exit code 75)" in done.err


@pytest.mark.parametrize("watched", [True, False], ids=["while followed", "before it is followed"])
def test_a_deadline_after_a_preemption_is_75_even_if_the_pod_is_gone(
    watched: bool, run: Run, with_all: FakeCluster
) -> None:
    def script(job: JobScript) -> None:
        pod = job.pod()
        if watched:
            eventually(lambda: with_all.seen("GET", f"{pod}/log"))
        job.log(pod, "preempted: saved step 60 of 300; start again to go on")
        job.ends(pod, 75)
        job.removes(pod)
        job.status(lambda status: status.update(failed=1))
        job.fails("DeadlineExceeded", "Job was active longer than specified deadline")

    with_all.scripts["jaxport-train"] = script
    if not watched:
        run("submit", "train", "--no-follow")
        eventually(lambda: with_all.job("jaxport-train")["status"].get("conditions"))
    done = run(*TRAIN)
    assert done.code == 75
    assert "86400 s (activeDeadlineSeconds) were up" in done.error and "--replace" in done.error
    assert ("exit code 75" in done.error) == watched


def test_a_deadline_before_any_container_ran_is_4(run: Run, with_all: FakeCluster) -> None:
    def script(job: JobScript) -> None:
        pod = job.pod(running=False)
        job.unschedulable(pod, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
        eventually(lambda: with_all.watching("pods"))
        job.removes(pod)
        job.status(lambda status: status.update(failed=1))
        job.fails("DeadlineExceeded")

    with_all.scripts["jaxport-train"] = script
    done = run(*TRAIN)
    assert done.code == 4 and "no container had run" in done.error


def test_a_job_that_somebody_deletes_is_75(run: Run, with_all: FakeCluster) -> None:
    def script(job: JobScript) -> None:
        pod = job.pod()
        job.log(pod, STEPS[0])
        eventually(lambda: with_all.seen("GET", f"{pod}/log"))
        with_all.delete(job.path)

    with_all.scripts["jaxport-train"] = script
    done = run(*TRAIN)
    assert done.code == 75 and "deleted while it ran" in done.error
    assert done.out.splitlines()[0] == STEPS[0] and "saved step 20" in done.out


def test_what_a_pod_waits_for_is_said_once(run: Run, with_all: FakeCluster) -> None:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."

    def script(job: JobScript) -> None:
        pod = job.pod(running=False)
        job.unschedulable(pod, said)
        eventually(lambda: with_all.watching("pods"))
        job.unschedulable(pod, said)
        job.runs(pod)
        job.ends(pod, 0)
        job.completes()

    with_all.scripts["jaxport-train"] = script
    assert run(*TRAIN).err.count(f"jaxport-train-0-00001 waits: {said}") == 1


def test_processes_of_an_indexed_job_are_told_apart(run: Run, with_all: FakeCluster, tmp_path: Path) -> None:
    text = (
        run("submit", "train", "--dry-run")
        .out.replace("completions: 1", "completions: 2")
        .replace("parallelism: 1", "parallelism: 2")
    )
    (tmp_path / "two.yaml").write_text(text)

    def script(job: JobScript) -> None:
        both = [job.pod(index) for index in (0, 1)]
        for index, pod in enumerate(both):
            job.log(pod, f"process {index}")
        job.ends(both[0], 4)
        job.ends(both[1], 75)
        job.fails("BackoffLimitExceeded")

    with_all.scripts["jaxport-train"] = script
    done = run(*TRAIN, "--manifests", str(tmp_path / "two.yaml"))
    assert sorted(done.out.splitlines()) == ["[0] process 0", "[1] process 1"]
    assert done.code == 4 and done.error.endswith("process 0"), (
        "the one that did not end because of the other"
    )


def test_a_log_that_is_cut_again_and_again_loses_nothing(run: Run, with_all: FakeCluster) -> None:
    def script(job: JobScript) -> None:
        pod = job.pod()
        for at, left in ((0, 2), (5, 1), (10, 0)):
            for line in STEPS[at : at + 5]:
                job.log(pod, line, line)  # the same text twice is two lines
            eventually(lambda left=left: len(with_all.cut_logs_after) == left)
        job.ends(pod, 0)
        job.completes()

    with_all.cut_logs_after = [0, 3, 1]
    with_all.scripts["jaxport-train"] = script
    done = run(*TRAIN)
    assert done.code == 0
    assert done.out.splitlines() == [line for line in STEPS for _ in (1, 2)]
    assert with_all.cut_logs_after == []


def test_a_connection_that_comes_back_loses_nothing(run: Run, with_all: FakeCluster) -> None:
    """And the versions that the watches had are forgotten meanwhile."""

    def script(job: JobScript) -> None:
        pod = job.pod()
        job.log(pod, *STEPS[:5])
        eventually(lambda: with_all.seen("GET", f"{pod}/log"))
        with_all.down = True
        job.log(pod, *STEPS[5:10])
        eventually(lambda: {path.rpartition("/")[2] for path in with_all.broken} == {"jobs", "pods", "log"})
        job.log(pod, *STEPS[10:])
        job.ends(pod, 0)
        job.completes()
        with_all.forget_history()
        with_all.down = False

    with_all.scripts["jaxport-train"] = script
    done = run("submit", "train", "--follow", "--patience", "30")
    assert done.code == 0, done.err
    assert done.out.splitlines() == STEPS
    assert done.err.count("the connection is lost, trying again") == done.err.count("connected again") > 0


def test_a_connection_that_stays_away_is_4_and_the_job_goes_on(run: Run, with_all: FakeCluster) -> None:
    def script(job: JobScript) -> None:
        job.log(job.pod(), STEPS[0])
        eventually(lambda: with_all.watching("pods"))
        with_all.down = True

    with_all.scripts["jaxport-train"] = script
    begun = time.monotonic()
    done = run(*TRAIN)
    assert done.code == 4 and time.monotonic() - begun < 40
    assert "does not answer" in done.error
    assert done.error.endswith(
        "job/jaxport-train goes on; to follow it again: jaxport logs train --run tiny --follow"
    )
    assert with_all.job("jaxport-train")


def test_who_may_not_watch_is_told_so_and_the_job_goes_on(run: Run, with_all: FakeCluster) -> None:
    said = 'pods "p" is forbidden: User "me" cannot get resource "pods/log" in API group "" in the namespace "jaxport"'
    with_all.refuse("GET", "/log$", 403, said)
    with_all.scripts["jaxport-train"] = lambda job: job.log(job.pod(), STEPS[0])
    done = run(*TRAIN)
    assert done.code == 4
    assert "me may not get pods/log in namespace jaxport" in done.error and "goes on" in done.error


def test_a_version_that_has_expired_is_listed_anew(run: Run, with_all: FakeCluster) -> None:
    with_all.refuse("GET", "/(jobs|pods)$", 410, "Expired: too old resource version", times=4)
    with_all.scripts["jaxport-train"] = lambda job: job.runs_through(*STEPS)
    done = run(*TRAIN)
    assert done.code == 0 and done.out.splitlines() == STEPS


def test_pods_that_are_told_of_late_count(run: Run, with_all: FakeCluster) -> None:
    """The end of a Job is known before the watch says that it had a pod at all."""

    def script(job: JobScript) -> None:
        eventually(lambda: with_all.watching("pods"))
        with_all.silent = "/pods"
        job.runs_through("error: the reason", code=2)

    with_all.scripts["jaxport-train"] = script
    done = run(*TRAIN)
    assert done.code == 2 and done.out == "error: the reason\n"


def test_an_api_that_is_overloaded_is_asked_again(run: Run, with_all: FakeCluster) -> None:
    with_all.scripts["jaxport-train"] = lambda job: job.runs_through(*STEPS)
    with_all.refuse("GET", "/pods$", 503, "apiserver is shutting down", times=2)
    with_all.refuse("GET", "/log$", 500, "dial tcp 10.0.0.7:10250: connect: connection refused", times=2)
    done = run("submit", "train", "--follow", "--patience", "20")
    assert done.code == 0 and done.out.splitlines() == STEPS


PAGE = b"<!DOCTYPE html>\n<html>\nlog in first\n</html>\n"
JSON = "application/json"
# What something between here and the API makes of an answer of it.
FOREIGN = {
    "a page": (PAGE, "text/html; charset=utf-8"),
    "a page that claims to be JSON": (PAGE, JSON),
    "a watch that is cut in a line": (b'{"type": "MODIFIED", "object": {"metadata": {"na', JSON),
    "no object": (b"5\n", JSON),
    "an empty object": (b"{}\n", JSON),
    "an event of nothing": (b'{"type": "ADDED"}\n', JSON),
    "an event of no object": (b'{"type": "MODIFIED", "object": {"metadata": {"name": 5}}}\n', JSON),
    "an event of another kind": (b'{"type": "X", "object": {"metadata": {"name": "a", "uid": "b"}}}\n', JSON),
    "deep": (b"[" * 100_000, JSON),
}


@pytest.mark.parametrize("watch", [False, True], ids=["list", "watch"])
@pytest.mark.parametrize(("data", "kind"), FOREIGN.values(), ids=FOREIGN.keys())
def test_an_answer_that_is_no_object_is_asked_for_again(
    data: bytes, kind: str, watch: bool, run: Run, with_all: FakeCluster
) -> None:
    with_all.scripts["jaxport-train"] = lambda job: job.runs_through(*STEPS)
    for plural in ("jobs", "pods"):
        with_all.answer(f"/{plural}$", data, kind, watch, times=1)
    done = run("submit", "train", "--follow", "--patience", "20")
    assert done.code == 0 and done.out.splitlines() == STEPS, done
    if not watch:
        assert "the answer is no object of Kubernetes but" in done.err and "connected again" in done.err


@pytest.mark.parametrize("plural", ["jobs", "pods"])
@pytest.mark.parametrize("watch", [False, True], ids=["list", "watch"])
@pytest.mark.parametrize("cut", ["a page", "a watch that is cut in a line"])
def test_answers_that_stay_no_objects_are_4_and_the_job_goes_on(
    cut: str, watch: bool, plural: str, run: Run, with_all: FakeCluster
) -> None:
    with_all.answer(f"/{plural}$", *FOREIGN[cut], watch)
    done = run("submit", "train", "--follow", "--patience", "0.2")
    assert done.code == 4 and "no object of Kubernetes but" in done.error, done
    assert "job/jaxport-train goes on" in done.error


def test_a_page_in_the_place_of_a_log_is_no_line_of_it(run: Run, with_all: FakeCluster) -> None:
    with_all.answer("/log$", PAGE, times=2)
    with_all.scripts["jaxport-train"] = lambda job: job.runs_through(*STEPS)
    done = run(*TRAIN)
    assert done.code == 0 and done.out.splitlines() == STEPS, done
    with_all.answer("/log$", PAGE)
    done = run(*TRAIN)
    assert done.code == 0 and "html" not in done.out.replace("text/html", ""), done
    assert "the rest of the log of" in done.out
    done = run("logs", "train")
    assert done.code == 4 and not done.out and "a document of the type text/html" in done.error


@pytest.mark.parametrize("where", ["watching._list", "follow.follow_log"])
def test_a_fault_of_ours_in_a_thread_is_raised_and_not_waited_for(
    where: str, run: Run, with_all: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("ours")

    monkeypatch.setattr(f"jaxport.cluster.{where}", broken)
    with_all.scripts["jaxport-train"] = lambda job: job.log(job.pod(), STEPS[0])
    with pytest.raises(LookupError, match="ours"):
        run(*TRAIN)


def test_without_a_pod_the_events_of_the_job_say_why(
    run: Run, with_all: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = 'pods "jaxport-train-0-" is forbidden: error looking up service account jaxport/jaxport-train: not found'

    def script(job: JobScript) -> None:
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "type": "Warning",
            "metadata": {"name": "e", "namespace": "jaxport"},
        }
        with_all.create(
            "/api/v1/namespaces/jaxport/events", event | {"message": said, "involvedObject": {"uid": job.uid}}
        )
        eventually(lambda: len(with_all.seen("GET", "/events$")) > 2)
        job.runs_through("at last")

    soon = partial(FollowSettings, quiet=0.1)
    monkeypatch.setattr("jaxport.cluster.following.FollowSettings", soon)
    with_all.scripts["jaxport-train"] = script
    done = run(*TRAIN)
    assert done.code == 0 and done.err.count(f"job/jaxport-train waits: {said}") == 1


def test_the_whole_way_is_followed_stage_by_stage(run: Run, cluster: FakeCluster) -> None:
    for stage, line in (
        ("train", STEPS[-1]),
        ("export", "wrote /work/models/tiny/1"),
        ("warm", "warmed models=1"),
    ):
        cluster.scripts[f"jaxport-{stage}"] = lambda job, line=line: job.runs_through(line)
    done = run("submit", "all", "--follow")
    assert done.code == 0
    assert sorted(done.out.splitlines()) == sorted(
        ["[export] wrote /work/models/tiny/1", f"[train] {STEPS[-1]}", "[warm] warmed models=1"]
    )


def test_what_waits_for_a_stage_that_failed_is_not_waited_for(run: Run, cluster: FakeCluster) -> None:
    cluster.scripts["jaxport-train"] = lambda job: job.runs_through("error: no", code=3)
    cluster.scripts["jaxport-export"] = lambda job: job.log(
        job.pod(), "waiting for /work/runs/tiny to finish"
    )
    done = run("submit", "all", "--follow")
    assert done.code == 3 and "job/jaxport-train failed" in done.error


def test_a_job_that_is_over_is_followed_to_its_end_all_the_same(run: Run, with_all: FakeCluster) -> None:
    with_all.scripts["jaxport-train"] = lambda job: job.runs_through(*STEPS, code=2)
    assert run(*TRAIN).code == 2
    again = run(*TRAIN)
    assert again.code == 2 and again.out.splitlines() == STEPS and "job/jaxport-train exists" in again.err


@pytest.fixture
def interrupts() -> Iterator[None]:
    """What is started here heeds SIGINT. In the background of a shell tests ignore it, and so would their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_interrupting_detaches_and_leaves_the_job(
    cluster: FakeCluster, with_all: FakeCluster, kubeconfig: Path
) -> None:
    with_all.scripts["jaxport-train"] = lambda job: job.log(job.pod(), STEPS[0])
    command = [sys.executable, "-m", "jaxport", "submit", "train", "--follow"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == STEPS[0]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(
        r"detached; job/jaxport-train goes on\. Its log: jaxport logs train --run tiny --follow; to stop it: jaxport cancel train --run tiny$",
        err.strip(),
    )
    assert "deletionTimestamp" not in with_all.job("jaxport-train")["metadata"]


def test_lines_are_told_apart_by_their_time_and_text() -> None:
    position = Position()
    first = [
        "2026-01-02T03:04:05.000000002Z b",
        "2026-01-02T03:04:05.000000001Z a",
        "2026-01-02T03:04:05.000000002Z b",
    ]
    assert [position.new(line) for line in first] == ["b", "a", "b"]
    assert position.since == "2026-01-02T03:04:03Z"
    again = [*first, "2026-01-02T03:04:05.000000002Z b", "2026-01-02T03:04:05.000000002Z c"]
    assert [position.new(line) for line in again] == [None, None, None, "b", "c"]
    assert position.new("2026-01-02T11:04:06.5+08:00 another zone") == "another zone"
    assert position.since == "2026-01-02T03:04:04Z"
    assert position.new("unable to retrieve container logs") == "unable to retrieve container logs"


def test_a_long_log_is_not_remembered_whole() -> None:
    position = Position()
    for second in range(3600):
        for line in range(5):
            position.new(
                f"2026-01-02T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{line:09d}Z x"
            )
    assert len(position._given) < 2100
