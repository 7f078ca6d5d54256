"""optional/kueue: what one apply queues fits the quota at the same time, in every resource that it asks for.

Who is admitted holds its share while it waits for the others: a warm Job for a bundle that a training has to make, which
would wait for that share in turn.
"""

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from decimal import Decimal

import pytest

from tests.deploy.kubectl import kustomized
from tests.deploy.objects import DEPLOY, Object, Objects, fits, of_kind, overlays, parsed, pods
from tests.deploy.policies.pods import quantity

OPTIONAL = DEPLOY / "optional"
QUEUE = "kueue.x-k8s.io/queue-name"
COMBINATIONS = [
    (folder, *(OPTIONAL / name for name in names))
    for folder in overlays()
    for names in (["kueue"], ["kueue", "jobset"])
    if all(fits(OPTIONAL / name, folder) for name in names)
]


def asked(objects: Objects) -> Counter[str]:
    """Of all that is queued together, by resource. What is a limit alone is asked for as much."""
    total: Counter[str] = Counter()
    for pod in pods([each for each in objects if QUEUE in each["metadata"].get("labels", {})]):
        for each in pod.containers:
            resources = each.spec["resources"]
            for name, value in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
                total[name] += (pod.job or {}).get("parallelism", 1) * (quantity(value) or Decimal(0))
    return total


def quota(objects: Objects) -> dict[str, Decimal | None]:
    [queue] = of_kind(objects, "ClusterQueue")
    [group] = queue["spec"]["resourceGroups"]
    [flavor] = group["flavors"]
    given = {each["name"]: quantity(each["nominalQuota"]) for each in flavor["resources"]}
    return {name: given.get(name) for name in group["coveredResources"]}


def blocked(objects: Objects) -> Iterator[str]:
    there = quota(objects)
    for name, value in asked(objects).items():
        if name not in there:
            yield f"{name} is not in coveredResources: nothing that asks for it is ever admitted"
        elif (there[name] or 0) < value:
            yield f"{name}: {value} asked for together; the quota is {there[name]}"


def combined(folders: tuple) -> list[Object]:
    return parsed(kustomized(*folders))


@pytest.mark.parametrize("folders", COMBINATIONS, ids=lambda folders: " with ".join(f.name for f in folders))
def test_what_is_applied_together_is_admitted_together(folders: tuple) -> None:
    objects = combined(folders)
    queued = [each["metadata"]["name"] for each in objects if QUEUE in each["metadata"].get("labels", {})]
    assert sorted(queued) == ["jaxport-export", "jaxport-train", "jaxport-warm"]
    assert asked(objects)["cpu"] > 0
    assert list(blocked(objects)) == []


def test_a_quota_that_is_too_small_and_a_resource_that_it_lacks_are_found() -> None:
    objects = combined((DEPLOY / "overlays" / "gke-l4", OPTIONAL / "kueue", OPTIONAL / "jobset"))
    small, gap = deepcopy(objects), deepcopy(objects)
    [queue] = of_kind(small, "ClusterQueue")
    resources = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    next(each for each in resources if each["name"] == "nvidia.com/gpu")["nominalQuota"] = 4
    assert list(blocked(small)) == ["nvidia.com/gpu: 5 asked for together; the quota is 4"]
    [queue] = of_kind(gap, "ClusterQueue")
    queue["spec"]["resourceGroups"][0]["coveredResources"].remove("ephemeral-storage")
    assert "ephemeral-storage is not in coveredResources" in "".join(blocked(gap))


def test_a_training_on_queued_nodes_has_a_queue_of_its_own_with_a_check_that_is_there() -> None:
    objects = combined((DEPLOY / "overlays" / "gke-l4", OPTIONAL / "kueue-provisioning"))
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    queued = {
        name: each["metadata"]["labels"].get(QUEUE) for (kind, name), each in by_name.items() if kind == "Job"
    }
    assert queued == {
        "jaxport-train": "jaxport-train",
        "jaxport-export": "jaxport",
        "jaxport-warm": "jaxport",
    }
    local = by_name["LocalQueue", "jaxport-train"]["spec"]["clusterQueue"]
    queue = by_name["ClusterQueue", local]["spec"]
    [check] = queue["admissionChecksStrategy"]["admissionChecks"]
    parameters = by_name["AdmissionCheck", check["name"]]["spec"]["parameters"]
    config = by_name[parameters["kind"], parameters["name"]]["spec"]
    assert config["provisioningClassName"] == "queued-provisioning.gke.io"
    [flavor] = queue["resourceGroups"][0]["flavors"]
    assert ("ResourceFlavor", flavor["name"]) in by_name
    # The others want nodes that are there: nobody provisions for them.
    assert "admissionChecksStrategy" not in by_name["ClusterQueue", "jaxport"]["spec"]
    given = {each["name"]: quantity(each["nominalQuota"]) or 0 for each in flavor["resources"]}
    alone = [by_name["Job", "jaxport-train"]]
    assert given.keys() == asked(alone).keys() and all(asked(alone)[name] <= given[name] for name in given)
