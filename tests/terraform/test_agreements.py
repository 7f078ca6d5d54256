"""terraform/ and deploy/ speak of the same cluster: names, identities, and a node for every pod.

Each side is read as it is: the plan's JSON, and what kustomize makes of an overlay. Where one changes alone, this fails.
"""

import copy
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.deploy.kubectl import kustomized
from tests.deploy.objects import BASE, DEPLOY, Object, Pod, of_kind, outputs, parsed, pods
from tests.deploy.policies.pods import quantity
from tests.terraform.conftest import SIZES, VARIANTS
from tests.terraform.toolchain import MAJORS
from tests.terraform.workspace import Json, Plan

GI = 2**30
# Processors and memory in GiB, as Google's pages of machine types have them.
MACHINES = {"e2-standard-4": (4, 16), "g2-standard-8": (8, 32), "g2-standard-24": (24, 96)}
# What GKE's own pods ask for on every node: logging, metrics, DNS, the drivers of volumes. An estimate, and a large one.
SYSTEM = (0.7, 1.5)


@dataclass(frozen=True)
class Pool:
    """A node pool of a plan, as the scheduler sees one of its nodes."""

    name: str
    values: Json

    @property
    def node(self) -> Json:
        return self.values["node_config"][0]

    @property
    def accelerator(self) -> Json | None:
        return next(iter(self.node["guest_accelerator"]), None)

    @property
    def labels(self) -> dict[str, str]:
        """Those that GKE puts on every node."""
        labels = {"cloud.google.com/gke-nodepool": self.name}
        if self.accelerator:
            labels["cloud.google.com/gke-accelerator"] = self.accelerator["type"]
        if self.node["spot"]:
            labels["cloud.google.com/gke-spot"] = "true"
        if self.node["flex_start"]:
            labels["cloud.google.com/gke-flex-start"] = "true"
        return labels

    @property
    def gpus(self) -> int:
        """How many pods that ask for one GPU fit on a node."""
        if self.accelerator is None:
            return 0
        shared = self.accelerator["gpu_sharing_config"]
        return self.accelerator["count"] * (shared[0]["max_shared_clients_per_gpu"] if shared else 1)

    @property
    def most(self) -> int:
        return self.values["autoscaling"][0]["total_max_node_count"]

    @property
    def room(self) -> tuple[float, float]:
        """Processors and GiB that pods may ask for, after what GKE reserves and runs itself.

        https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes#resource_reservations
        """
        cores, memory = MACHINES[self.node["machine_type"]]
        reserved_cores = 0.06 + 0.01 + 0.005 * 2 + 0.0025 * (cores - 4)
        reserved = 0.25 * 4 + 0.2 * 4 + 0.1 * 8 + 0.06 * max(0, min(memory, 128) - 16) + 0.1
        return cores - reserved_cores - SYSTEM[0], memory - reserved - SYSTEM[1]

    def takes(self, pod: Pod) -> bool:
        wanted = pod.spec.get("nodeSelector", {})
        tolerations = pod.spec.get("tolerations", [])
        asked = requests(pod)
        return (
            wanted.items() <= self.labels.items()
            and wished(pod.spec.get("affinity", {}), self.labels)
            and all(any(tolerated(taint, each) for each in tolerations) for taint in self.node["taint"])
            and asked[0] <= self.room[0]
            and asked[1] <= self.room[1]
            and gpus(pod) <= self.gpus
        )


def wished(affinity: Object, labels: dict[str, str]) -> bool:
    """Whether a node with these labels is one that a pod's affinity lets it go to: NotIn, where the label is missing too."""
    if not affinity:
        return True
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    matches = {
        "In": lambda value, values: value in values,
        "NotIn": lambda value, values: value not in values,
    }
    return any(
        all(
            matches[each["operator"]](labels.get(each["key"]), each["values"])
            for each in term["matchExpressions"]
        )
        for term in required["nodeSelectorTerms"]
    )


def tolerated(taint: Json, toleration: Object) -> bool:
    same = toleration["operator"] == "Exists" or toleration.get("value") == taint["value"]
    return toleration.get("key") == taint["key"] and toleration.get("effect") == "NoSchedule" and same


def requests(pod: Pod) -> tuple[float, float]:
    """Processors and GiB of all containers that run at the same time."""
    running = [each for each in pod.containers if each.sidecar or each.spec in pod.spec["containers"]]
    asked = [each.spec["resources"]["requests"] for each in running]
    cores = sum(float(quantity(each["cpu"]) or 0) for each in asked)
    return cores, sum(float(quantity(each["memory"]) or 0) for each in asked) / GI


def gpus(pod: Pod) -> int:
    return sum(
        int(each.spec["resources"].get("limits", {}).get("nvidia.com/gpu", 0)) for each in pod.containers
    )


def pools(plan: Plan) -> list[Pool]:
    return [Pool(name, values) for name, values in plan.pools().items()]


def places(objects: list[Object], plan: Plan) -> dict[str, set[str]]:
    """name of a Job or Deployment -> the pools that its pods may run in."""
    return {
        pod.owner["metadata"]["name"].removeprefix("jaxport-"): {pool.name for pool in pools(plan) if pool.takes(pod)}
        for pod in pods(objects)
        if pod.namespace == "jaxport"
    }  # fmt: skip


def applied(plan: Plan, to: Path) -> list[Object]:
    """What `kubectl apply -k` would send, of the overlay that terraform itself writes."""
    shutil.copytree(DEPLOY, to / "deploy", symlinks=True)
    mine = to / "deploy" / "overlays" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(plan.output("kustomization"))
    return parsed(kustomized(mine))


@pytest.fixture
def defaults(planned: Callable[[str, str], Plan]) -> Plan:
    return planned(MAJORS[-1], "defaults")


@pytest.fixture
def gke() -> list[Object]:
    return outputs()["overlays/gke-l4"]


def images(objects: list[Object]) -> set[str]:
    return {each.spec["image"] for pod in pods(objects) for each in pod.containers}


def test_the_overlay_names_the_registry_that_is_made(defaults: Plan, gke: list[Object]) -> None:
    ours = {image.rsplit("/", 1)[0] for image in images(gke) if "/jaxport/" in image}
    assert ours == {defaults.output("registry")}


def test_filestore_is_in_the_network_that_is_made_and_its_driver_is_there(
    defaults: Plan, gke: list[Object]
) -> None:
    (storage,) = of_kind(gke, "StorageClass")
    assert storage["parameters"]["network"] == defaults.one("google_compute_network")["name"]
    assert storage["provisioner"] == "filestore.csi.storage.gke.io"
    assert any("file.googleapis.com" in address for address in defaults.of("google_project_service"))


def test_the_accounts_of_the_manifests_are_the_ones_that_are_bound(defaults: Plan) -> None:
    accounts = parsed((DEPLOY / "base" / "accounts.yaml").read_text())
    written = {f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in accounts}
    bound = {each["member"] for each in defaults.of("google_service_account_iam_member").values()}
    assert bound == {f"serviceAccount:my-project.svc.id.goog[{name}]" for name in written}


def test_every_pod_of_the_overlay_has_one_pool_to_go_to(defaults: Plan, gke: list[Object]) -> None:
    assert places(gke, defaults) == {
        "train": {"train-l4"},
        "warm": {"train-l4"},
        "export": {"cpu"},
        "serve": {"serve-l4"},
    }


def test_training_on_several_hosts_has_the_nodes_it_waits_for(defaults: Plan) -> None:
    objects = outputs()["overlays/multi-host"]
    assert places(objects, defaults)["train"] == {"train-l4"}
    (train,) = (pod for pod in pods(objects) if pod.owner["metadata"]["name"] == "jaxport-train")
    (pool,) = (pool for pool in pools(defaults) if pool.name == "train-l4")
    processes = (train.job or {})["parallelism"]
    assert processes <= pool.most * (pool.gpus // gpus(train))


def crowded(objects: list[Object], plan: Plan) -> list[str]:
    """What cannot come to an end for want of GPUs: the servers that the autoscaler may want with one more in a rollout, and the
    same servers beside a Job, unless that may take its GPU from them."""
    (server,) = (pod for pod in pods(objects) if pod.owner["metadata"]["name"] == "jaxport-serve")
    rolling = server.owner["spec"]["strategy"]["rollingUpdate"]
    found = [] if rolling["maxSurge"] + rolling["maxUnavailable"] else ["no server can be replaced"]
    (scaler,) = (each["spec"] for each in of_kind(objects, "HorizontalPodAutoscaler"))
    if not 1 <= scaler["minReplicas"] <= scaler["maxReplicas"]:
        found.append(f"from {scaler['minReplicas']} to {scaler['maxReplicas']} servers")
    (pool,) = (pool for pool in pools(plan) if pool.takes(server))
    room = pool.most * pool.gpus
    if scaler["maxReplicas"] + rolling["maxSurge"] > room:
        found.append(f"{scaler['maxReplicas']} servers and {rolling['maxSurge']} in a rollout on {room} GPUs")
    beside = [stage for stage, pod, _ in waiting(objects) if stage != "serve" and pool.takes(pod)]
    if "priorityClassName" not in server.spec and scaler["maxReplicas"] + len(beside) > room:
        found.append(f"{scaler['maxReplicas']} servers and {beside} on {room} GPUs")
    return found


# The servers that the overlay asks for, least and most.
SERVERS = {
    "defaults": (2, 8),
    "everything": (2, 17),
    "one-serving-pool": (1, 1),
    "example": (2, 2),
    "two-for-servers": (1, 1),
    "many-for-servers": (2, 19),
    "one-pool-of-two": (1, 1),
    "one-pool-of-three": (2, 2),
    "one-pool-shared": (2, 2),
    "one-pool-for-trainings": (2, 2),
}


@pytest.mark.parametrize("variant", [name for name in {**VARIANTS, **SIZES} if name != "cpu-only"])
def test_servers_may_become_as_many_as_the_autoscaler_wants(
    planned: Callable[[str, str], Plan], tmp_path: Path, variant: str
) -> None:
    plan = planned(MAJORS[-1], variant)
    objects = applied(plan, tmp_path)
    assert crowded(objects, plan) == []
    assert stuck(objects, plan) == []
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == SERVERS[variant]


def test_the_overlay_as_it_stands_fits_the_cluster_of_the_defaults(defaults: Plan, gke: list[Object]) -> None:
    assert crowded(gke, defaults) == []


def test_more_servers_than_gpus_would_be_noticed(
    planned: Callable[[str, str], Plan], gke: list[Object]
) -> None:
    """The overlay without what terraform writes over it."""
    assert crowded(gke, planned(MAJORS[-1], "example")) == [
        "8 servers and 1 in a rollout on 3 GPUs",
        "8 servers and [] on 3 GPUs",
    ]
    assert "8 servers and 1 in a rollout on 1 GPUs" in crowded(gke, planned(MAJORS[-1], "one-serving-pool"))
    still = copy.deepcopy(gke)
    (server,) = of_kind(still, "Deployment")
    server["spec"]["strategy"]["rollingUpdate"]["maxSurge"] = 0
    assert crowded(still, planned(MAJORS[-1], "many-for-servers")) == ["no server can be replaced"]


# Where the stages go with the overlay that terraform writes.
PLACES = {
    "defaults": {"train": {"train-l4"}, "warm": {"train-l4"}, "export": {"cpu"}, "serve": {"serve-l4"}},
    "cpu-only": {stage: {"cpu"} for stage in ("train", "warm", "export", "serve")},
    "one-serving-pool": {"train": {"serve-l4"}, "warm": {"serve-l4"}, "export": {"cpu"}, "serve": {"serve-l4"}},
    "everything": {"train": {"train-l4"}, "warm": {"serve-l4"}, "export": {"cpu"}, "serve": {"serve-l4"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "shares"), [("defaults", {}), ("everything", {"serve": "0.45", "warm": "0.45"})]
)
def test_who_shares_a_gpu_takes_a_share_of_its_memory(
    planned: Callable[[str, str], Plan], tmp_path: Path, variant: str, shares: dict[str, str]
) -> None:
    found = {
        pod.owner["metadata"]["name"].removeprefix("jaxport-"): entry["value"]
        for pod in pods(applied(planned(MAJORS[-1], variant), tmp_path))
        for entry in pod.spec["containers"][0].get("env", [])
        if entry["name"] == "XLA_PYTHON_CLIENT_MEM_FRACTION"
    }
    assert found == shares


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_overlay_that_is_written_fits_the_cluster(
    planned: Callable[[str, str], Plan], tmp_path: Path, variant: str
) -> None:
    plan = planned(MAJORS[-1], variant)
    objects = applied(plan, tmp_path)
    assert places(objects, plan) == PLACES[variant]
    registry = plan.output("registry")
    tag = "cpu" if variant == "cpu-only" else "cuda12"
    assert images(objects) == {
        f"{registry}/train:0.1.0-{tag}",
        f"{registry}/export:0.1.0-cpu",
        f"{registry}/serve:0.1.0-{tag}",
        f"{registry}-dockerhub/envoyproxy/envoy:distroless-v1.40.0",
    }
    for account in of_kind(objects, "ServiceAccount"):
        stage = account["metadata"]["name"].removeprefix("jaxport-")
        assert account["metadata"]["annotations"] == {
            "iam.gke.io/gcp-service-account": plan.output("service_accounts")[stage]
        }
    for storage in of_kind(objects, "StorageClass"):
        assert storage["parameters"]["network"] == plan.one("google_compute_network")["name"]


def waiting(objects: list[Object]) -> list[tuple[str, Pod, int]]:
    """Stage, pod and how many of it want a GPU at once, before there is a bundle."""
    servers = sum(each["spec"]["minReplicas"] for each in of_kind(objects, "HorizontalPodAutoscaler"))
    return [
        (
            pod.owner["metadata"]["name"].removeprefix("jaxport-"),
            pod,
            servers if pod.owner["kind"] == "Deployment" else 1,
        )
        for pod in pods(objects)
        if pod.namespace == "jaxport" and gpus(pod)
    ]


def stuck(objects: list[Object], plan: Plan) -> list[str]:
    """Pools in which those who wait for a bundle can keep the training from its GPU: there are too few for all of them, and
    the training may not take one."""
    classes = {each["metadata"]["name"]: each for each in of_kind(objects, "PriorityClass")}

    def rank(pod: Pod) -> int:
        return classes.get(pod.spec.get("priorityClassName", ""), {"value": 0})["value"]

    found = []
    for pool in pools(plan):
        here = {stage: (pod, many) for stage, pod, many in waiting(objects) if pool.takes(pod)}
        wanted = sum(many * gpus(pod) for pod, many in here.values())
        if "train" not in here or wanted <= pool.most * pool.gpus:
            continue
        train = here["train"][0]
        order = [rank(here[stage][0]) for stage in ("train", "warm", "serve") if stage in here]
        may = classes.get(train.spec.get("priorityClassName", ""), {}).get("preemptionPolicy") != "Never"
        if not may or order != sorted(set(order), reverse=True):
            found.append(pool.name)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_applied_at_once_the_training_gets_its_gpu(
    planned: Callable[[str, str], Plan], tmp_path: Path, variant: str
) -> None:
    plan = planned(MAJORS[-1], variant)
    assert stuck(applied(plan, tmp_path), plan) == []


def test_a_training_that_never_gets_its_gpu_would_be_noticed(
    planned: Callable[[str, str], Plan], tmp_path: Path
) -> None:
    plan = planned(MAJORS[-1], "one-serving-pool")
    objects = applied(plan, tmp_path)
    for pod in pods(objects):
        pod.spec.pop("priorityClassName", None)
    assert stuck(objects, plan) == ["serve-l4"]
    # A class that takes nothing from anybody is of no use.
    never = applied(plan, tmp_path / "never")
    next(each for each in never if each["metadata"]["name"] == "jaxport-train-first")["preemptionPolicy"] = (
        "Never"
    )
    assert stuck(never, plan) == ["serve-l4"]


def test_who_is_queued_asks_for_flex_start_nodes(planned: Callable[[str, str], Plan], tmp_path: Path) -> None:
    found = {
        pod.owner["metadata"]["name"].removeprefix("jaxport-")
        for pod in pods(applied(planned(MAJORS[-1], "everything"), tmp_path))
        if pod.spec.get("nodeSelector", {}).get("cloud.google.com/gke-flex-start") == "true"
    }
    assert found == {"train"}


def test_the_accounts_that_are_named_are_the_ones_that_are_made(defaults: Plan) -> None:
    """Google makes an account's email of its name and the project; the overlay is written before there is one."""
    made = {each["account_id"] for each in defaults.of("google_service_account").values()}
    assert {email.partition("@")[0] for email in defaults.output("service_accounts").values()} == made - {
        "jaxport-nodes"
    }
    assert all(
        email.endswith("@my-project.iam.gserviceaccount.com")
        for email in defaults.output("service_accounts").values()
    )


def test_servers_go_to_nodes_that_last_and_trainings_to_spot(gke: list[Object]) -> None:
    """By the overlay alone, whatever taints a pool has."""
    by_name = {pod.owner["metadata"]["name"]: pod for pod in pods(gke)}
    spot, lasting = {"cloud.google.com/gke-spot": "true"}, {}
    server = by_name["jaxport-serve"].spec["affinity"]
    assert wished(server, lasting) and not wished(server, spot)
    for name in ("jaxport-train", "jaxport-warm"):
        assert "affinity" not in by_name[name].spec
        assert spot.items() <= by_name[name].spec["nodeSelector"].items()


def test_what_is_written_is_a_kustomization_and_says_who_wrote_it(defaults: Plan) -> None:
    text = defaults.output("kustomization")
    assert text.startswith("# Made by: terraform output -raw kustomization\n")
    written = yaml.safe_load(text)
    assert written["kind"] == "Kustomization"
    assert written["sortOptions"] == yaml.safe_load((BASE / "kustomization.yaml").read_text())["sortOptions"]


def test_a_pod_that_fits_nowhere_would_be_noticed(defaults: Plan, gke: list[Object]) -> None:
    (pod,) = (pod for pod in pods(gke) if pod.owner["metadata"]["name"] == "jaxport-train")
    spec = {**pod.spec, "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}}
    elsewhere = Pod(pod.owner, {**pod.template, "spec": spec}, pod.job)
    intolerant = Pod(pod.owner, {**pod.template, "spec": {**pod.spec, "tolerations": []}}, pod.job)
    assert not any(pool.takes(each) for pool in pools(defaults) for each in (elsewhere, intolerant))
    assert math.isclose(requests(pod)[1], 8)
