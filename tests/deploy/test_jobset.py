"""optional/jobset: the JobSet is the Job of whatever it is laid over, with a second process."""

import os
from copy import deepcopy
from typing import Any

import pytest

from tests.deploy.kubectl import kustomized
from tests.deploy.objects import DEPLOY, Object, outputs, parsed
from tests.deploy.policies import POLICIES

# What a second process asks for; all else is the Job's.
CHANGED_ENV = {"JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"}


def named(objects: list[Object], kind: str, name: str = "jaxport-train") -> Any:
    return next((o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)), None)


def same(job: Any) -> Any:
    """A Job's spec without what the component changes."""
    left = deepcopy(job)
    for key in ("completions", "parallelism", "backoffLimit"):
        left.pop(key)
    pod = left["template"]["spec"]
    pod["volumes"] = [each for each in pod["volumes"] if each["name"] != "shm"]
    [container] = pod["containers"]
    container["env"] = [each for each in container["env"] if each["name"] not in CHANGED_ENV]
    container.pop("ports", None)
    for asked in container["resources"].values():
        for key in ("cpu", "memory", "nvidia.com/gpu"):
            asked.pop(key, None)
    return left


def test_it_has_image_node_tolerations_and_all_else_of_the_job_of_the_overlay() -> None:
    before, after = outputs()["overlays/gke-l4"], outputs()["gke-l4 with optional/jobset"]
    assert named(after, "Job") is None
    [replicated] = named(after, "JobSet")["spec"]["replicatedJobs"]
    here = replicated["template"]["spec"]
    assert same(here) == same(named(before, "Job")["spec"])
    pod = here["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert pod["containers"][0]["image"].startswith("europe-west4-docker.pkg.dev/")
    assert (here["completions"], here["parallelism"], here["backoffLimit"]) == (2, 2, 0)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """An overlay of somebody's: other images and arguments, and components before and after."""
    folder = tmp_path_factory.mktemp("mine").resolve()
    at = os.path.relpath(DEPLOY, folder)
    (folder / "kustomization.yaml").write_text(f"""
resources: [{at}/overlays/gke-l4]
components: [{at}/components/priority, {at}/optional/kueue, {at}/optional/jobset]
images:
  - {{name: europe-west4-docker.pkg.dev/my-project/jaxport/train, newName: registry.example.com/jaxport/train, newTag: 0.1.0-2-cuda12}}
""")
    return parsed(kustomized(folder))


def test_it_has_what_components_before_it_gave_the_job(mine: list[Object]) -> None:
    job_set = named(mine, "JobSet")
    assert job_set["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "jaxport"
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "jaxport-jobs"


def test_an_overlay_above_renames_its_image_too(mine: list[Object]) -> None:
    pod = named(mine, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.com/jaxport/train:0.1.0-2-cuda12"


def test_an_overlay_of_somebodys_keeps_the_policies(mine: list[Object]) -> None:
    assert [said for policy in POLICIES for said in policy(mine)] == []


def test_each_kind_of_wrong_copy_would_be_seen() -> None:
    """The comparison itself: what was once left behind."""
    job = named(outputs()["overlays/gke-l4"], "Job")["spec"]
    for change in ("nodeSelector", "tolerations", "containers", "securityContext"):
        wrong = deepcopy(job)
        wrong["template"]["spec"][change] = (
            [{**job["template"]["spec"]["containers"][0], "image": "localhost/jaxport/train:0.1.0-cuda12"}]
            if change == "containers"
            else {}
        )
        assert same(wrong) != same(job), change
