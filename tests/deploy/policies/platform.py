"""Of what a cluster has beside Kubernetes: kinds of GPU, Spot nodes, storage, and a queue."""

from collections.abc import Iterator, Mapping
from decimal import Decimal

from tests.deploy.objects import Objects, named, namespace, of_kind, pods
from tests.deploy.policies.commands import environment
from tests.deploy.policies.pods import ACCELERATOR, quantity

HERE = "tests/deploy/policies/platform.py"
SPOT = "cloud.google.com/gke-spot"
QUEUE = "kueue.x-k8s.io/queue-name"
# As GKE spells them. One that nodes of yours have, and on which the stages have run, is added here.
ACCELERATORS = {"nvidia-l4"}
# Where GKE mounts the driver of a node with GPUs.
DRIVER = "/usr/local/nvidia/lib64"
# Of each tier of Filestore, as its driver spells them: the smallest instance.
FILESTORE = {"standard": "1Ti", "premium": "2.5Ti", "zonal": "1Ti", "enterprise": "1Ti"}
PROVISIONERS: Mapping[str, Mapping[str, str]] = {"filestore.csi.storage.gke.io": FILESTORE}


def accelerators_are_known(objects: Objects) -> Iterator[str]:
    """A kind that no node has lets the pod wait for ever."""
    for pod in pods(objects):
        found = pod.spec.get("nodeSelector", {}).get(ACCELERATOR)
        if found is not None and found not in ACCELERATORS:
            yield f"{pod}: nodeSelector {ACCELERATOR}: {found}; known: {sorted(ACCELERATORS)}, in {HERE}"


def drivers_are_found(objects: Objects) -> Iterator[str]:
    """CUDA comes as wheels, which do not look where GKE mounts the driver: training would find no device."""
    for pod in (each for each in pods(objects) if ACCELERATOR in each.spec.get("nodeSelector", {})):
        for each in pod.containers:
            gpus = "nvidia.com/gpu" in each.spec["resources"].get("limits", {})
            if gpus and environment(each).get("LD_LIBRARY_PATH") != DRIVER:
                yield f"{each}: env LD_LIBRARY_PATH {environment(each).get('LD_LIBRARY_PATH')}; needed on GKE: {DRIVER}"


def spot_is_chosen_and_tolerated_alike(objects: Objects) -> Iterator[str]:
    """The taint of a pool is its label; whoever asks for one without the other gets no node."""
    for pod in pods(objects):
        asked = pod.spec.get("nodeSelector", {}).get(SPOT)
        wanted = (
            []
            if asked is None
            else [{"key": SPOT, "operator": "Equal", "value": asked, "effect": "NoSchedule"}]
        )
        found = [each for each in pod.spec.get("tolerations", []) if each.get("key") == SPOT]
        if found != wanted or asked not in (None, "true"):
            yield f"{pod}: {SPOT}: {asked}, and tolerations {found}; needed: true and {wanted}"
        if asked is not None and pod.job is None:
            yield f"{pod}: {SPOT}: {asked}: a server would be gone with 15 seconds' notice"


def storage_is_to_be_had(objects: Objects) -> Iterator[str]:
    for each in of_kind(objects, "StorageClass"):
        tiers = PROVISIONERS.get(each["provisioner"])
        if tiers is None:
            yield f"{named(each)}: provisioner {each['provisioner']}; known: {sorted(PROVISIONERS)}, in {HERE}"
            continue
        tier = each.get("parameters", {}).get("tier")
        if tier not in tiers:
            yield f"{named(each)}: tier {tier}; known: {sorted(tiers)}, in {HERE}"
            continue
        for claim in of_kind(objects, "PersistentVolumeClaim"):
            size = claim["spec"]["resources"]["requests"]["storage"]
            if claim["spec"].get("storageClassName") == each["metadata"]["name"] and _of(size) < _of(
                tiers[tier]
            ):
                yield f"{named(claim)}: storage {size}; the tier {tier} begins at {tiers[tier]}"


def _of(value: object) -> Decimal:
    return quantity(value) or Decimal(0)


def jobs_are_queued(objects: Objects) -> Iterator[str]:
    """A Job beside the queue takes what the queue counts; one in a queue that is not there waits for ever."""
    queues = {(namespace(each), each["metadata"]["name"]) for each in of_kind(objects, "LocalQueue")}
    for pod in (each for each in pods(objects) if each.job is not None and queues):
        queue = pod.owner["metadata"].get("labels", {}).get(QUEUE)
        if (pod.namespace, queue) not in queues:
            yield f"{pod}: label {QUEUE} {queue}; there is {sorted(name for _, name in queues)}"


def queues_are_whole(objects: Objects) -> Iterator[str]:
    """That what is asked for fits them is test_queues.py's."""
    clusters = {each["metadata"]["name"] for each in of_kind(objects, "ClusterQueue")}
    for each in of_kind(objects, "LocalQueue"):
        if each["spec"]["clusterQueue"] not in clusters:
            yield f"{named(each)}: no ClusterQueue {each['spec']['clusterQueue']}"
    flavors = {each["metadata"]["name"] for each in of_kind(objects, "ResourceFlavor")}
    for each in of_kind(objects, "ClusterQueue"):
        for group in each["spec"]["resourceGroups"]:
            for flavor in group["flavors"]:
                if flavor["name"] not in flavors:
                    yield f"{named(each)}: no ResourceFlavor {flavor['name']}"
                names = [resource["name"] for resource in flavor["resources"]]
                if names != group["coveredResources"]:
                    yield f"{named(each)}: coveredResources {group['coveredResources']}; {flavor['name']} has {names}"
        labels = each["spec"]["namespaceSelector"].get("matchLabels", {}).get("kubernetes.io/metadata.name")
        for queue in of_kind(objects, "LocalQueue"):
            if queue["spec"]["clusterQueue"] == each["metadata"]["name"] and labels not in (
                None,
                namespace(queue),
            ):
                yield f"{named(each)}: namespaceSelector {labels}; {named(queue)} is in {namespace(queue)}"


POLICIES = (
    accelerators_are_known,
    drivers_are_found,
    spot_is_chosen_and_tolerated_alike,
    storage_is_to_be_had,
    jobs_are_queued,
    queues_are_whole,
)
