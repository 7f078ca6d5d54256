"""What is created, what is left alone, and what is refused."""

import copy
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxport.cluster.difference import RECORD, differences
from tests.deploy.objects import Object, plain
from tests.deploy.schemas import VERSIONS, problems
from tests.jaxport.cluster.conftest import Run
from tests.jaxport.cluster.fake_api import FakeCluster, eventually

FORBIDDEN = '{0}.{1} is forbidden: User "system:serviceaccount:ci:runner" cannot {2} resource "{0}" in API group "{1}" in the namespace "jaxport"'


def training() -> Object:
    return next(
        each for each in plain() if each["kind"] == "Job" and each["metadata"]["name"] == "jaxport-train"
    )


def sent(cluster: FakeCluster) -> list[Object]:
    """What was sent, without the record of what was asked for, which says the same."""
    found = []
    for body in copy.deepcopy(cluster.sent):
        if body["kind"] == "Job":
            record = json.loads(body["metadata"].pop("annotations").pop(RECORD))
            assert record == body
        found.append(body)
    return found


def test_submit_all_creates_exactly_what_deploy_holds(run: Run, cluster: FakeCluster) -> None:
    done = run("submit", "all", "--no-follow")
    assert done.code == 0, done.err
    assert sent(cluster) == plain()
    assert len(cluster.objects) == len(plain())
    assert [said for each in cluster.sent for version in VERSIONS for said in problems(each, version)] == []
    assert done.err.splitlines()[-1] == "not followed; its log: jaxport logs train --run tiny --follow"


@pytest.mark.parametrize("stage", ["train", "export", "warm"])
def test_a_stage_alone_is_its_job(stage: str, run: Run, with_all: FakeCluster) -> None:
    assert run("submit", stage, "--no-follow").code == 0
    assert sent(with_all) == [
        each for each in plain() if each["kind"] == "Job" and each["metadata"]["name"] == f"jaxport-{stage}"
    ]
    assert all(query == {"fieldManager": "jaxport"} for query in with_all.seen("POST", "/jobs"))


def test_what_kustomize_prints_comes_in_by_standard_input(
    run: Run, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = run("submit", "all", "--dry-run", "--tag", "0.1.0-cpu").out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run("submit", "all", "--manifests", "-", "--no-follow").code == 0
    assert "localhost/jaxport/train:0.1.0-cpu" in str(cluster.job("jaxport-train"))


def test_again_nothing_is_made_anew(run: Run, cluster: FakeCluster) -> None:
    run("submit", "all", "--no-follow")
    uids = {path: each["metadata"]["uid"] for path, each in cluster.objects.items()}
    done = run("submit", "all", "--no-follow")
    assert done.code == 0 and "job/jaxport-train exists" in done.err and "created" not in done.err
    assert {path: each["metadata"]["uid"] for path, each in cluster.objects.items()} == uids
    assert len(cluster.seen("POST", "/jobs")) == 3 and cluster.seen("DELETE", "") == []


def test_replicas_that_an_autoscaler_has_set_stay(run: Run, cluster: FakeCluster) -> None:
    run("submit", "all", "--no-follow")
    path = "/apis/apps/v1/namespaces/jaxport/deployments/jaxport-serve"
    cluster.modify(path, lambda each: each["spec"].update(replicas=5))
    assert run("submit", "all", "--no-follow").code == 0
    assert cluster.objects[path]["spec"]["replicas"] == 5
    assert {query["force"] for query in cluster.seen("PATCH", "")} == {"false"}


def test_a_field_that_somebody_else_has_set_is_refused_and_can_be_taken(
    run: Run, cluster: FakeCluster
) -> None:
    run("submit", "all", "--no-follow")
    path = "/apis/autoscaling/v2/namespaces/jaxport/horizontalpodautoscalers/jaxport-serve"
    cluster.owners[path, "spec.maxReplicas"] = "kubectl-edit"
    cluster.modify(path, lambda each: each["spec"].update(maxReplicas=20))
    done = run("submit", "all", "--no-follow")
    assert done.code == 2
    for said in (
        "horizontalpodautoscaler/jaxport-serve",
        '"kubectl-edit": .spec.maxReplicas',
        "--force-conflicts",
    ):
        assert said in done.error
    assert run("submit", "all", "--no-follow", "--force-conflicts").code == 0
    assert cluster.objects[path]["spec"]["maxReplicas"] == 8


def test_a_job_that_differs_is_refused_before_anything_is_changed(run: Run, cluster: FakeCluster) -> None:
    run("submit", "all", "--no-follow", "--steps", "200")
    before = len(cluster.seen("PATCH", ""))
    done = run("submit", "all", "--no-follow", "--steps", "400")
    assert done.code == 2
    assert (
        "job/jaxport-train is there and differs: containers[train].args: '--steps 200' there, '--steps 400' wanted"
        in done.error
    )
    assert "--replace" in done.error
    assert len(cluster.seen("PATCH", "")) == before


def test_replace_waits_until_the_old_pods_are_gone_and_leaves_the_volume(
    run: Run, cluster: FakeCluster
) -> None:
    order: list[str] = []
    cluster.scripts["jaxport-train"] = lambda job: None if order else order.append(job.pod())
    run("submit", "all", "--no-follow")
    first = cluster.job("jaxport-train")["metadata"]["uid"]
    eventually(lambda: bool(order))
    done = run("submit", "train", "--no-follow", "--replace", "--steps", "400")
    assert done.code == 0 and "job/jaxport-train replaced" in done.err, done.err
    assert "they have 60 s to save" in done.err
    assert cluster.job("jaxport-train")["metadata"]["uid"] != first
    assert [verb for verb, path, _ in cluster.requests if "jobs/jaxport-train" in path and verb != "GET"] == [
        "DELETE"
    ]
    assert cluster.of_kind("pods") == [] and len(cluster.of_kind("persistentvolumeclaims")) == 1


def test_replace_leaves_an_unchanged_job_that_runs_and_runs_one_again_that_is_over(
    run: Run, with_all: FakeCluster
) -> None:
    run("submit", "warm", "--no-follow")
    assert "exists" in run("submit", "warm", "--no-follow", "--replace").err
    path = "/apis/batch/v1/namespaces/jaxport/jobs/jaxport-warm"
    over = [{"type": "Complete", "status": "True"}]
    with_all.modify(path, lambda job: job["status"].update(conditions=over))
    assert "exists" in run("submit", "warm", "--no-follow").err
    assert "replaced" in run("submit", "warm", "--no-follow", "--replace").err


def test_a_job_that_is_going_is_waited_for(run: Run, with_all: FakeCluster) -> None:
    run("submit", "train", "--no-follow")
    with_all.delete("/apis/batch/v1/namespaces/jaxport/jobs/jaxport-train")
    done = run("submit", "train", "--no-follow", "--steps", "400")
    assert done.code == 0 and "job/jaxport-train created" in done.err


def test_a_job_of_kubectl_is_known_by_what_was_asked_for(run: Run, with_all: FakeCluster) -> None:
    """By kubectl's record, or else by its fields, whatever the API, or who else, has added."""
    job = training()
    made = with_all.create("/apis/batch/v1/namespaces/jaxport/jobs", job)
    with_all.modify(
        "/apis/batch/v1/namespaces/jaxport/jobs/jaxport-train",
        lambda each: each["spec"]["template"]["spec"].update(nodeSelector={"pool": "l4"}),
    )
    assert RECORD not in str(made)
    assert "exists" in run("submit", "train", "--no-follow").err
    assert run("submit", "train", "--no-follow", "--steps", "4").code == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec.pop("activeDeadlineSeconds"), "spec.activeDeadlineSeconds: 86400 there, nothing wanted"),
        (lambda spec: spec["template"]["spec"].update(nodeSelector={"a": "b"}), 'nodeSelector: nothing there, {"a": "b"} wanted'),
        (lambda spec: spec["template"]["spec"]["containers"][0]["env"].pop(), "containers[train].env: "),
        (lambda spec: spec["template"]["spec"]["containers"][0].update(image="x"), 'image: "localhost/jaxport/train:0.1.0-cuda12" there, "x" wanted'),
        (lambda spec: spec["template"]["spec"]["containers"][0]["resources"]["limits"].update(memory="8192Mi", cpu=8), ""),
    ],
)  # fmt: skip
def test_a_difference_is_named_where_it_is(change, said: str) -> None:
    job = training()
    record = {"metadata": {"annotations": {RECORD: json.dumps(job)}}, "spec": {}}
    wanted = copy.deepcopy(job)
    change(wanted["spec"])
    found = differences(record, wanted)
    assert len(found) == bool(said) and said in "".join(found)


def test_somebody_who_was_faster_is_joined(run: Run, with_all: FakeCluster) -> None:
    """Between the look and the creation the Job appears."""
    run("submit", "train", "--no-follow")
    with_all.refuse("GET", "jobs/jaxport-train", 404, 'jobs.batch "jaxport-train" not found', times=1)
    done = run("submit", "train", "--no-follow")
    assert done.code == 0 and "job/jaxport-train exists" in done.err


def test_who_may_not_is_told_what_to_ask_for(run: Run, with_all: FakeCluster) -> None:
    with_all.refuse("POST", "/jobs", 403, FORBIDDEN.format("jobs", "batch", "create"))
    done = run("submit", "train", "--no-follow")
    assert done.code == 4
    assert done.error.startswith(
        "forbidden: system:serviceaccount:ci:runner may not create jobs.batch in namespace jaxport; ask for a Role"
    )


def test_a_quota_says_what_it_says(run: Run, with_all: FakeCluster) -> None:
    said = 'jobs.batch "jaxport-train" is forbidden: exceeded quota: few, requested: count/jobs.batch=1, used: 3, limited: 3'
    with_all.refuse("POST", "/jobs", 403, said)
    done = run("submit", "train", "--no-follow")
    assert done.code == 4 and "exceeded quota: few" in done.error


def test_a_namespace_that_one_may_not_make_is_taken_to_be_there(run: Run, cluster: FakeCluster) -> None:
    said = 'namespaces "jaxport" is forbidden: User "me" cannot patch resource "namespaces" in API group "" in the namespace "jaxport"'
    cluster.refuse("PATCH", "/namespaces/jaxport$", 403, said)
    missing = run("submit", "all", "--no-follow")
    assert missing.code == 2 and missing.error.startswith(
        "no namespace jaxport: `jaxport submit all` makes it"
    )
    cluster.create("/api/v1/namespaces", plain()[0])
    done = run("submit", "all", "--no-follow")
    assert done.code == 0 and "namespace/jaxport left alone" in done.err


def test_a_namespace_that_is_missing_is_named(run: Run, cluster: FakeCluster) -> None:
    done = run("submit", "train", "--no-follow")
    assert done.code == 2 and done.error.startswith("no namespace jaxport")


def test_what_the_api_finds_wrong_is_one_line(run: Run, with_all: FakeCluster, tmp_path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(run("submit", "train", "--dry-run").out.replace("backoffLimit: 6", "backoffLimit: many"))
    done = run("submit", "train", "--manifests", str(bad), "--no-follow")
    assert done.code == 2 and "backoffLimit" in done.error


def test_stages_in_two_namespaces_are_refused(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    text = run("submit", "all", "--dry-run").out
    jobs = text.replace(
        "name: jaxport-warm\n  namespace: jaxport\n", "name: jaxport-warm\n  namespace: other\n"
    )
    (tmp_path / "two.yaml").write_text(jobs)
    done = run("submit", "all", "--manifests", str(tmp_path / "two.yaml"))
    assert done.code == 2 and "stages in the namespaces jaxport, other" in done.error


def test_a_login_that_ends_while_it_follows_leaves_the_job(run: Run, with_all: FakeCluster) -> None:
    with_all.refuse("GET", "/pods$", 401, "Unauthorized")
    done = run("submit", "train", "--follow")
    assert done.code == 4 and "log in again" in done.error and "job/jaxport-train goes on" in done.error


def test_a_kind_that_the_cluster_does_not_know_is_named_first(
    run: Run, with_all: FakeCluster, tmp_path
) -> None:
    other = tmp_path / "other.yaml"
    kind = "apiVersion: monitoring.googleapis.com/v1\nkind: PodMonitoring\nmetadata: {name: serve, namespace: jaxport}\n"
    other.write_text(run("submit", "train", "--dry-run").out + "---\n" + kind)
    done = run("submit", "all", "--manifests", str(other), "--no-follow")
    assert done.code == 2 and "PodMonitoring serve: the cluster knows no kind PodMonitoring" in done.error
    assert with_all.of_kind("jobs") == []


def test_without_the_extra_it_is_named() -> None:
    code = "import sys; sys.modules['kubernetes'] = None\nfrom jaxport.cli import main\nsys.exit(main(['status']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.strip() == "error: jaxport status needs kubernetes: pip install 'jaxport[k8s]'"
