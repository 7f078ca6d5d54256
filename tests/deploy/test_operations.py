"""What the documents tell a person to type: every step brings what it says, nothing gives up too early, and it fits."""

from collections.abc import Mapping
from decimal import Decimal

import pytest

from tests.deploy.kubectl import kustomized
from tests.deploy.objects import BASE, DEPLOY, ROOT, Objects, named, outputs, parsed, plain, pods
from tests.deploy.operations import (
    MONITORING,
    OPERATIONS,
    README,
    Apply,
    applies,
    blocks,
    foreign,
    impatient,
    misplaced,
    selects,
    staged,
)
from tests.deploy.policies import POLICIES
from tests.deploy.policies.pods import quantity
from tests.deploy.schemas import VERSIONS, problems

GIB = 1024**3
OWNER = DEPLOY / "optional" / "volume-owner" / "job.yaml"
BOTH = (OPERATIONS, README)


def test_every_path_that_is_applied_is_there() -> None:
    found = [apply.source for text in BOTH for block in blocks(text) for apply in applies(block)]
    assert len(found) > 10
    for source in found:
        assert (ROOT / source).exists() or source == "deploy/overlays/mine", source


def test_what_is_applied_again_is_the_overlay_of_the_reader() -> None:
    """Another one takes images, nodes and the class of the volume from what runs."""
    again = README[README.index("## Applied at once") :]
    assert [foreign(text) for text in (OPERATIONS, MONITORING, again)] == [[], [], []]


@pytest.mark.parametrize(
    "line", ["kubectl apply -f deploy/", "`kubectl delete -f deploy/`", "&& kubectl\napply -f deploy/stage-3-warm.yaml`",
             "kubectl apply -k deploy/overlays/gke-l4 -l 'x in (y)'"],
)  # fmt: skip
def test_a_command_for_somebody_elses_overlay_is_found(line: str) -> None:
    assert len(foreign(f"see {line}\n")) == 1


@pytest.mark.parametrize("name", [name for name in outputs() if name != "base"])
def test_steps_cover_every_object_and_bring_waiters_last(name: str) -> None:
    assert len(staged()) == 2, "one in each document"
    for steps in staged():
        assert list(misplaced(steps, outputs()[name])) == []


def test_steps_in_another_order_or_with_a_gap_are_found() -> None:
    key = "app.kubernetes.io/component"
    everything = Apply("deploy/", None)

    def said(*selectors: str) -> list[str]:
        return list(misplaced([Apply("deploy/", f"{key} {each}") for each in selectors], plain()))

    first, second = "notin (warm,serve)", "notin (serve)"
    assert "never applied" in said(first, second, "in (warm)")[0]
    assert "step 1 brings serve" in said("notin (warm)", second, "notin (x)")
    assert "step 1 does not bring export" in said("in (train)", second, "notin (x)")
    assert "step 2 does not bring warm" in said(first, first, "notin (x)")
    assert "step 1 brings warm" in list(misplaced([everything] * 3, plain()))
    with pytest.raises(ValueError, match="needed: key in"):
        said("= serve", second, first)


def test_the_warm_job_alone_brings_its_account() -> None:
    alone = [apply for block in blocks(OPERATIONS) for apply in applies(block) if "in (warm)" in (apply.selector or "")
             and "notin" not in (apply.selector or "")]  # fmt: skip
    assert len(alone) == 2
    for apply in alone:
        assert sorted(map(named, apply.of(plain()))) == ["Job jaxport-warm", "ServiceAccount jaxport-warm"]


def test_what_lacks_a_label_is_in_no_set() -> None:
    assert selects("tier notin (a)", {"metadata": {}}) and not selects("tier in (a)", {"metadata": {}})


def deadlines(objects: Objects) -> Mapping[str, int]:
    return {
        pod.owner["metadata"]["name"]: pod.job["activeDeadlineSeconds"] for pod in pods(objects) if pod.job
    }


def test_no_wait_gives_up_before_what_it_waits_for() -> None:
    for text in BOTH:
        for block in blocks(text):
            assert list(impatient(block, dict(deadlines(plain())))) == []


@pytest.mark.parametrize(
    "line, said",
    [
        (
            "kubectl -n jaxport wait --for=condition=complete job/jaxport-export --timeout=24h",
            "90000 seconds",
        ),
        ("kubectl -n jaxport wait --for=condition=complete job/jaxport-warm --timeout=1h", "93600 seconds"),
        ("kubectl -n jaxport rollout status deployment/jaxport-serve", "gives up"),
    ],
)
def test_a_wait_that_gives_up_is_found(line: str, said: str) -> None:
    block = ["kubectl -n jaxport logs -f job/jaxport-train", line]
    assert said in "".join(impatient(block, dict(deadlines(plain()))))


def test_the_next_model_is_warmed_after_its_export() -> None:
    """A warm Job that is applied with the others ends at the bundle of before."""
    [block] = [
        block for block in blocks(OPERATIONS) if block[0].endswith("delete job jaxport-train jaxport-export")
    ]
    order = [next(i for i, line in enumerate(block) if part in line) for part in
             ("complete job/jaxport-export", "delete job jaxport-warm", "in (warm)")]  # fmt: skip
    assert order == sorted(order)


def requested(objects: Objects, resource: str) -> Decimal:
    """Of all pods at once: a Job's as many as it runs, a Deployment's as it says, sidecars beside the others."""
    total = Decimal(0)
    for pod in pods(objects):
        several = pod.job.get("parallelism", 1) if pod.job else pod.owner["spec"].get("replicas", 1)
        for each in pod.containers:
            total += several * (quantity(each.spec["resources"]["requests"][resource]) or 0)
    return total


def test_a_small_node_holds_all_pods_of_the_overlay_for_cpus() -> None:
    """Waiters must not keep the training out: 4 GiB and 2 CPUs, of which a node of kind leaves 3 GiB and 1 CPU."""
    objects = outputs()["overlays/cpu"]
    memory, cpu = requested(objects, "memory"), requested(objects, "cpu")
    assert memory <= 3 * GIB and cpu <= 1
    assert f"request {memory / GIB:.1f} GiB and {cpu:.1f} CPU" in OPERATIONS


def test_requests_of_a_bigger_pod_would_be_seen() -> None:
    assert requested(plain(), "memory") > 3 * GIB and requested(plain(), "cpu") > 1


def test_tls_and_mtls_exclude_each_other() -> None:
    with pytest.raises(RuntimeError, match="Unable to remove nonexistent key: appProtocol"):
        kustomized(BASE, *(DEPLOY / "components" / name for name in ("tls", "mtls")))


def owner() -> Objects:
    return parsed(OWNER.read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_the_job_that_owns_the_volume_is_one_that_kubernetes_knows(version: str) -> None:
    assert [said for each in owner() for said in problems(each, version)] == []


def test_the_job_that_owns_the_volume_breaks_the_rules_it_has_to_and_no_other() -> None:
    together = [*plain(), *owner()]
    broken = {policy.__name__: list(policy(together)) for policy in POLICIES}
    assert {name for name, said in broken.items() if said} == {
        "commands_are_the_images",  # chown in place of jaxport
        "arguments_parse",
        "devices_are_named",
        "jobs_end",  # a Job of a moment, which nobody applies twice
        "failures_are_told_apart",
        "scratch_is_bounded",
        "pods_are_restricted",
        "containers_are_restricted",
        "clients_alone_call_servers",  # no stage, so network.yaml takes it for a client, for its moment
    }
    assert all("volume-owner" in said for found in broken.values() for said in found)
    [pod] = pods(owner())
    assert pod.spec["securityContext"]["runAsUser"] == 0
    assert pod.containers[0].spec["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}


def test_the_namespace_is_restricted_again_after_the_volume_has_its_owner() -> None:
    [block] = [block for block in blocks(OPERATIONS) if any("volume-owner" in line for line in block)]
    levels = [line.rpartition("=")[2] for line in block if "pod-security" in line]
    assert levels == ["baseline", "restricted"] and "pod-security" in block[-1]
