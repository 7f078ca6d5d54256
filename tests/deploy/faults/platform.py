"""Faults in what is asked of a cluster beside Kubernetes."""

from typing import Any

from tests.deploy.faults.planted import HOSTS, KUEUE, L4, Fault, Planted, cut, put
from tests.deploy.policies import platform


def covered(planted: Planted) -> Any:
    return planted.spec("ClusterQueue", "jaxport")["resourceGroups"][0]


def spot(planted: Planted) -> Any:
    return next(each for each in planted.train["tolerations"] if each["key"] == platform.SPOT)


FAULTS = (
    Fault(
        platform.accelerators_are_known,
        "Job jaxport-train: nodeSelector cloud.google.com/gke-accelerator: nvidia-l40",
        put(lambda p: p.train["nodeSelector"], **{"cloud.google.com/gke-accelerator": "nvidia-l40"}),
        HOSTS,
    ),
    Fault(
        platform.drivers_are_found,
        "container serve: env LD_LIBRARY_PATH /usr/local/nvidia/lib;",
        lambda p: p.server["env"][-1].update(value="/usr/local/nvidia/lib"),
        L4,
    ),
    Fault(
        platform.drivers_are_found,
        "container train: env LD_LIBRARY_PATH None",
        lambda p: p.trainer["env"].pop(),
        L4,
    ),
    Fault(
        platform.spot_is_chosen_and_tolerated_alike,
        "'value': 'yes'",
        lambda p: spot(p).update(value="yes"),
        L4,
    ),
    Fault(
        platform.spot_is_chosen_and_tolerated_alike,
        "tolerations []",
        lambda p: p.train["tolerations"].remove(spot(p)),
        L4,
    ),
    Fault(
        platform.spot_is_chosen_and_tolerated_alike,
        "gke-spot: True, and",
        put(lambda p: p.warm["nodeSelector"], **{platform.SPOT: "True"}),
        L4,
    ),
    Fault(
        platform.spot_is_chosen_and_tolerated_alike,
        "Deployment jaxport-serve: cloud.google.com/gke-spot: true: a server",
        put(lambda p: p.serve["nodeSelector"], **{platform.SPOT: "true"}),
        L4,
    ),
    Fault(
        platform.storage_is_to_be_had,
        "provisioner filestore.csi.gke.io",
        put(lambda p: p.of("StorageClass", "jaxport-filestore"), provisioner="filestore.csi.gke.io"),
        L4,
    ),
    Fault(
        platform.storage_is_to_be_had,
        "tier basic",
        put(lambda p: p.of("StorageClass", "jaxport-filestore")["parameters"], tier="basic"),
        L4,
    ),
    Fault(
        platform.storage_is_to_be_had,
        "storage 1Ti; the tier premium begins at 2.5Ti",
        put(lambda p: p.of("StorageClass", "jaxport-filestore")["parameters"], tier="premium"),
        L4,
    ),
    Fault(
        platform.jobs_are_queued,
        "Job jaxport-warm: label kueue.x-k8s.io/queue-name None",
        cut(lambda p: p.of("Job", "jaxport-warm")["metadata"]["labels"], platform.QUEUE),
        KUEUE,
    ),
    Fault(
        platform.queues_are_whole,
        "no ClusterQueue jobs",
        put(lambda p: p.spec("LocalQueue", "jaxport"), clusterQueue="jobs"),
        KUEUE,
    ),
    Fault(
        platform.queues_are_whole,
        "no ResourceFlavor any",
        lambda p: covered(p)["flavors"][0].update(name="any"),
        KUEUE,
    ),
    Fault(
        platform.queues_are_whole,
        "coveredResources ['cpu'",
        lambda p: covered(p)["flavors"][0]["resources"].pop(),
        KUEUE,
    ),
    Fault(
        platform.queues_are_whole,
        "namespaceSelector jaxports",
        lambda p: p.spec("ClusterQueue", "jaxport")["namespaceSelector"]["matchLabels"].update(
            {"kubernetes.io/metadata.name": "jaxports"}
        ),
        KUEUE,
    ),
)
