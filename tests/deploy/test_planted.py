"""Faults planted into the objects of deploy/, one at a time: each check has to find the one that it is there for."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from tests.deploy.objects import Object, outputs
from tests.deploy.policies import POLICIES, Policy, commands, pods, references, server, workloads
from tests.deploy.schemas import problems

PLAIN, CPU, HOSTS, METRICS = "deploy/", "overlays/cpu", "overlays/multi-host", "overlays/queue-time"
KEDA, ROUTE, MONITOR = (f"gke-l4 with optional/{name}" for name in ("keda", "gateway", "service-monitor"))


class Planted:
    """A copy of an output, and where in it things are."""

    def __init__(self, output: str) -> None:
        self.objects: list[Object] = deepcopy(outputs()[output])

    def of(self, kind: str, name: str) -> Any:
        return next(o for o in self.objects if o["kind"] == kind and o["metadata"]["name"] == name)

    def spec(self, kind: str, name: str) -> Any:
        return self.of(kind, name)["spec"]

    @property
    def serve(self) -> Any:
        """The server's pod."""
        return self.spec("Deployment", "jaxport-serve")["template"]["spec"]

    @property
    def server(self) -> Any:
        return self.serve["containers"][0]

    @property
    def envoy(self) -> Any:
        return self.serve["initContainers"][0]

    @property
    def job(self) -> Any:
        return self.spec("Job", "jaxport-train")

    @property
    def train(self) -> Any:
        """The training's pod."""
        return self.job["template"]["spec"]

    @property
    def trainer(self) -> Any:
        return self.train["containers"][0]

    def drop(self, kind: str, name: str) -> None:
        self.objects.remove(self.of(kind, name))

    def argument(self, container: Any, flag: str, value: str) -> None:
        container["args"][container["args"].index(flag) + 1] = value


@dataclass(frozen=True)
class Fault:
    """What is planted, who finds it, and with which words."""

    policy: Policy
    words: str
    plant: Callable[[Planted], object]
    output: str = PLAIN


def put(where: Callable[[Planted], Any], **values: object) -> Callable[[Planted], object]:
    return lambda planted: where(planted).update(values)


def cut(where: Callable[[Planted], Any], key: Any) -> Callable[[Planted], object]:
    return lambda planted: where(planted).pop(key)


def replaced(where: Callable[[Planted], Any], key: str, old: str, new: str) -> Callable[[Planted], object]:
    def plant(planted: Planted) -> None:
        found = where(planted)
        assert old in found[key]
        found[key] = found[key].replace(old, new)

    return plant


def context(p: Planted) -> Any:
    return p.server["securityContext"]


FAULTS = [
    # pods
    Fault(pods.images_are_pinned, "a tag other than latest", put(lambda p: p.server, image="localhost/jaxport/serve")),
    Fault(pods.images_are_pinned, "latest", put(lambda p: p.envoy, image="envoyproxy/envoy:distroless-latest")),
    Fault(pods.images_have_the_versions_of_the_project, "0.0.9", replaced(lambda p: p.trainer, "image", "0.1.0", "0.0.9")),
    Fault(pods.images_have_the_versions_of_the_project, "-cpu", cut(lambda p: p.trainer["resources"]["limits"], "nvidia.com/gpu")),
    Fault(pods.images_have_the_versions_of_the_project, "the tests run", replaced(lambda p: p.envoy, "image", "1.40.0", "1.39.0")),
    Fault(pods.resources_are_bounded, "limits.memory", cut(lambda p: p.server["resources"]["limits"], "memory")),
    Fault(pods.resources_are_bounded, "requests.cpu", put(lambda p: p.trainer["resources"]["requests"], cpu="2 cores")),
    Fault(pods.resources_are_bounded, "memory: 9Gi requested", put(lambda p: p.server["resources"]["requests"], memory="9Gi")),
    Fault(pods.scratch_is_bounded, "sizeLimit", lambda p: p.train["volumes"][1]["emptyDir"].clear()),
    Fault(pods.scratch_is_bounded, "no emptyDir at /tmp", put(lambda p: p.server["volumeMounts"][1], mountPath="/temp")),
    Fault(pods.pods_are_restricted, "runAsUser: 0", put(lambda p: p.serve["securityContext"], runAsUser=0)),
    Fault(pods.pods_are_restricted, "seccompProfile", cut(lambda p: p.train["securityContext"], "seccompProfile")),
    Fault(pods.pods_are_restricted, "hostPath", put(lambda p: p.train["volumes"][1], hostPath={"path": "/"})),
    Fault(pods.pods_are_restricted, "hostNetwork", put(lambda p: p.serve, hostNetwork=True)),
    Fault(pods.containers_are_restricted, "capabilities", put(context, capabilities={"drop": []})),
    Fault(pods.containers_are_restricted, "readOnlyRootFilesystem", cut(context, "readOnlyRootFilesystem")),
    Fault(pods.containers_are_restricted, "runAsUser: left to the pod", put(lambda p: p.envoy["securityContext"], runAsUser=101)),
    Fault(pods.tokens_are_not_mounted, "Deployment jaxport-serve", cut(lambda p: p.serve, "automountServiceAccountToken")),
    Fault(pods.tokens_are_not_mounted, "ServiceAccount", cut(lambda p: p.of("ServiceAccount", "jaxport-serve"), "automountServiceAccountToken")),
    Fault(pods.tokens_are_not_mounted, "adapter", lambda p: [p.drop("ClusterRoleBinding", n) for n in ("jaxport-metrics-delegator", "jaxport-metrics-resources")] and p.drop("RoleBinding", "jaxport-metrics-reader"), METRICS),
    Fault(pods.service_variables_are_off, "enableServiceLinks", cut(lambda p: p.serve, "enableServiceLinks")),
    Fault(pods.namespaces_are_restricted, "namespace ''", cut(lambda p: p.of("Service", "jaxport")["metadata"], "namespace")),
    Fault(pods.namespaces_are_restricted, "comes before its Namespace", lambda p: p.objects.reverse()),
    Fault(pods.namespaces_are_restricted, "not enforced", put(lambda p: p.of("Namespace", "jaxport")["metadata"]["labels"], **{"pod-security.kubernetes.io/enforce": "baseline"})),
    # commands
    Fault(commands.commands_are_the_images, "entrypoint", put(lambda p: p.trainer, command=["python"])),
    Fault(commands.commands_are_the_images, "quote the numbers", lambda p: p.server["args"].append(8501)),
    Fault(commands.arguments_parse, "--preset --model is required", lambda p: p.trainer["args"].__setitem__(1, "--presett")),
    Fault(commands.arguments_parse, "train ", lambda p: p.trainer["args"].__setitem__(0, "train ")),
    Fault(commands.arguments_parse, "tinny", lambda p: p.argument(p.trainer, "--preset", "tinny")),
    Fault(commands.arguments_parse, "--grpc-socket and --grpc-port exclude", lambda p: p.server["args"].extend(["--grpc-port", "8500"])),
    Fault(commands.arguments_parse, "--drain-delay 90 leaves no time", lambda p: p.argument(p.server, "--drain-delay", "90")),
    Fault(commands.arguments_parse, "preStop", lambda p: p.server["lifecycle"]["preStop"]["exec"]["command"].__setitem__(2, "--admin-sock")),
    Fault(commands.arguments_parse, "in a pod of component", put(lambda p: p.trainer, name="trainer")),
    Fault(commands.variables_are_read_by_something, "JAX_NUM_PROCESES", lambda p: p.trainer["env"][2].update(name="JAX_NUM_PROCESES")),
    Fault(commands.variables_are_read_by_something, "XLA_FLAGS", lambda p: p.trainer["env"][1].update(value="xla_gpu_exclude_nondeterministic_ops")),
    Fault(commands.devices_are_named, "JAX_PLATFORMS None", put(lambda p: p.server, env=[])),
    Fault(commands.devices_are_named, "JAX_PLATFORMS cuda,cpu", lambda p: p.server["env"][0].update(value="cuda,cpu"), CPU),
    Fault(commands.processes_find_each_other, "completions: 3", put(lambda p: p.job, completions=3, parallelism=3)),
    Fault(commands.processes_find_each_other, "Indexed", cut(lambda p: p.job, "completionMode")),
    Fault(commands.processes_find_each_other, "no headless Service", put(lambda p: p.train, subdomain="trainers"), HOSTS),
    Fault(commands.processes_find_each_other, "the container has no such port", put(lambda p: p.trainer["ports"][0], containerPort=8477), HOSTS),
    # workloads
    Fault(workloads.jobs_end, "activeDeadlineSeconds", cut(lambda p: p.job, "activeDeadlineSeconds")),
    Fault(workloads.jobs_end, "restartPolicy", put(lambda p: p.train, restartPolicy="OnFailure")),
    Fault(workloads.jobs_end, "ttlSecondsAfterFinished", put(lambda p: p.job, ttlSecondsAfterFinished=60)),
    Fault(workloads.jobs_end, "podReplacementPolicy", cut(lambda p: p.job, "podReplacementPolicy")),
    Fault(workloads.failures_are_told_apart, "DisruptionTarget is missing", lambda p: p.job["podFailurePolicy"]["rules"].pop(0)),
    Fault(workloads.failures_are_told_apart, "Ignore on {75}", lambda p: p.job["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[75])),
    Fault(workloads.failures_are_told_apart, "FailJob on", lambda p: p.job["podFailurePolicy"]["rules"].pop(2)),
    Fault(workloads.failures_are_told_apart, "no container 'trainer'", lambda p: p.job["podFailurePolicy"]["rules"][1]["onExitCodes"].update(containerName="trainer")),
    Fault(workloads.later_stages_wait_longer, "waits for train", put(lambda p: p.job, activeDeadlineSeconds=90000)),
    Fault(workloads.probes_are_there, "no readinessProbe", cut(lambda p: p.server, "readinessProbe")),
    Fault(workloads.probes_are_there, "no startupProbe", cut(lambda p: p.envoy, "startupProbe")),
    Fault(workloads.probes_are_there, "asks port 'htpp'", lambda p: p.server["livenessProbe"]["httpGet"].update(port="htpp")),
    Fault(workloads.probes_are_there, "asks /readyz", lambda p: p.server["livenessProbe"]["httpGet"].update(path="/readyz")),
    Fault(workloads.probes_are_there, "gives up after 20", put(lambda p: p.server["startupProbe"], failureThreshold=10)),
    Fault(workloads.stops_are_in_time, "need 55", put(lambda p: p.serve, terminationGracePeriodSeconds=54)),
    Fault(workloads.stops_are_in_time, "do not say", cut(lambda p: p.server, "lifecycle")),
    Fault(workloads.rollouts_lose_nobody, "maxUnavailable", cut(lambda p: p.spec("Deployment", "jaxport-serve"), "strategy")),
    Fault(workloads.rollouts_lose_nobody, "PodDisruptionBudget", lambda p: p.drop("PodDisruptionBudget", "jaxport-serve")),
    Fault(workloads.rollouts_lose_nobody, "topologySpread", cut(lambda p: p.serve, "topologySpreadConstraints")),
    Fault(workloads.scaled_deployments_set_no_replicas, "undo", put(lambda p: p.spec("Deployment", "jaxport-serve"), replicas=2)),
    # server
    Fault(server.servers_have_a_front, "sidecar", cut(lambda p: p.envoy, "restartPolicy")),
    Fault(server.both_sides_agree, "--grpc-socket /run/jaxport/rpc.sock", lambda p: p.argument(p.server, "--grpc-socket", "/run/jaxport/rpc.sock")),
    Fault(server.both_sides_agree, "not on an emptyDir", put(lambda p: p.envoy["volumeMounts"][2], mountPath="/run")),
    Fault(server.both_sides_agree, "max_request_bytes", lambda p: p.argument(p.server, "--max-message-bytes", "64MiB")),
    Fault(server.both_sides_agree, "ports [8501, 8502]", put(lambda p: p.envoy["ports"][0], containerPort=8501)),
    Fault(server.both_sides_agree, "the kernel kills it", put(lambda p: p.envoy["resources"]["limits"], memory="1Gi")),
    Fault(server.both_sides_agree, "--http-port 8601", lambda p: p.argument(p.server, "--http-port", "8601")),
    Fault(server.warm_jobs_are_like_servers, "max_batch", lambda p: p.server["args"].extend(["--max-batch", "8"])),
    Fault(server.warm_jobs_are_like_servers, "env", lambda p: p.server["env"].append({"name": "XLA_FLAGS", "value": "--xla_a=1"})),
    Fault(server.warm_jobs_are_like_servers, "device", cut(lambda p: p.serve, "nodeSelector"), HOSTS),
    Fault(server.the_volume_is_shared, "ReadWriteMany", put(lambda p: p.spec("PersistentVolumeClaim", "jaxport-work"), accessModes=["ReadWriteOnce"])),
    Fault(server.the_volume_is_shared, "accessModes", put(lambda p: p.spec("PersistentVolumeClaim", "jaxport-work"), accessModes=["ReadOnlyMany"]), CPU),
    Fault(server.servers_only_read, "to be written", cut(lambda p: p.server["volumeMounts"][0], "readOnly")),
    Fault(server.servers_only_read, "a Job writes", put(lambda p: p.trainer["volumeMounts"][0], readOnly=True)),
    Fault(server.paths_are_on_the_volume, "--models /models", lambda p: p.argument(p.server, "--models", "/models")),
    # references
    Fault(references.names_and_labels_are_right, "no DNS name", put(lambda p: p.of("Service", "jaxport")["metadata"], name="Jaxport")),
    Fault(references.names_and_labels_are_right, "no label", cut(lambda p: p.of("Service", "jaxport")["metadata"], "labels")),
    Fault(references.names_and_labels_are_right, "there twice", lambda p: p.objects.append(p.of("Service", "jaxport"))),
    Fault(references.what_pods_name_is_there, "no ConfigMap", lambda p: p.drop("ConfigMap", "jaxport-envoy")),
    Fault(references.what_pods_name_is_there, "no PersistentVolumeClaim", put(lambda p: p.train["volumes"][0]["persistentVolumeClaim"], claimName="work")),
    Fault(references.what_pods_name_is_there, "no ServiceAccount", put(lambda p: p.train, serviceAccountName="jaxport-trains")),
    Fault(references.what_pods_name_is_there, "no volume shmem", put(lambda p: p.trainer["volumeMounts"][2], name="shmem")),
    Fault(references.what_pods_name_is_there, "no PriorityClass", put(lambda p: p.serve, priorityClassName="high")),
    Fault(references.secrets_are_optional_where_none_is_made, "jaxport-tls", cut(lambda p: p.serve["volumes"][-1]["secret"], "optional")),
    Fault(references.classes_of_storage_are_there, "no StorageClass", lambda p: p.drop("StorageClass", "jaxport-filestore"), HOSTS),
    Fault(references.services_reach_pods, "selects no pod", put(lambda p: p.spec("Service", "jaxport")["selector"], **{"app.kubernetes.io/component": "server"})),
    Fault(references.services_reach_pods, "no such port", put(lambda p: p.spec("Service", "jaxport")["ports"][0], targetPort=8505)),
    Fault(references.services_reach_pods, "names a sidecar's", put(lambda p: p.spec("Service", "jaxport")["ports"][0], targetPort="grpc")),
    Fault(references.services_reach_pods, "open to the outside", put(lambda p: p.spec("Service", "jaxport"), type="LoadBalancer")),
    Fault(references.selectors_match, "PodDisruptionBudget", put(lambda p: p.spec("PodDisruptionBudget", "jaxport-serve")["selector"]["matchLabels"], app="x")),
    Fault(references.selectors_match, "NetworkPolicy serve", put(lambda p: p.spec("NetworkPolicy", "serve")["podSelector"]["matchLabels"], app="x")),
    Fault(references.selectors_match, "ServiceMonitor", put(lambda p: p.spec("ServiceMonitor", "jaxport-serve")["endpoints"][0], port="metrics"), MONITOR),
    Fault(references.nothing_is_open_that_is_not_named, "denies by default", lambda p: p.drop("NetworkPolicy", "default-deny")),
    Fault(references.nothing_is_open_that_is_not_named, "lets everybody in", cut(lambda p: p.spec("NetworkPolicy", "serve")["ingress"][0], "from")),
    Fault(references.nothing_is_open_that_is_not_named, "opens 8600", put(lambda p: p.spec("NetworkPolicy", "serve")["ingress"][0]["ports"][0], port=8600)),
    Fault(references.served_ports_are_let_in, "at 8500", lambda p: p.drop("NetworkPolicy", "serve")),
    Fault(references.served_ports_are_let_in, "at 8476", lambda p: p.drop("NetworkPolicy", "train-peers"), HOSTS),
    Fault(references.scalers_and_routes_have_targets, "no Deployment", put(lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve")["scaleTargetRef"], name="jaxport")),
    Fault(references.scalers_and_routes_have_targets, "measures ['server']", lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve")["metrics"][0]["containerResource"].update(container="server")),
    Fault(references.scalers_and_routes_have_targets, "ScaledObject", put(lambda p: p.spec("ScaledObject", "jaxport-serve")["scaleTargetRef"], name="jaxport"), KEDA),
    Fault(references.scalers_and_routes_have_targets, "no Service jaxport with port 85", lambda p: p.spec("GRPCRoute", "jaxport")["rules"][0]["backendRefs"][0].update(port=85), ROUTE),
    Fault(references.metrics_exist, "jaxport_queue_time", lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve")["metrics"][1]["pods"]["metric"].update(name="jaxport_queue_time"), METRICS),
    Fault(references.metrics_exist, "jaxport_queue_secs_sum", replaced(lambda p: p.of("ConfigMap", "adapter")["data"], "config.yaml", "jaxport_queue_seconds_sum", "jaxport_queue_secs_sum"), METRICS),
]  # fmt: skip

MISSPELT = {
    "a field of a container": put(lambda p: p.server, imagePulPolicy="Always"),
    "a field of a probe": put(lambda p: p.server["livenessProbe"], failureTreshold=3),
    "a field of a Job": put(lambda p: p.job, activeDeadlineSecond=5),
    "a field of a rule": put(lambda p: p.job["podFailurePolicy"]["rules"][1]["onExitCodes"], value=[1]),
    "a text for a number": put(lambda p: p.envoy["ports"][0], containerPort="8500"),
    "a number for a text": lambda p: p.server["args"].append(8501),
    "a field that is missing": cut(lambda p: p.spec("Deployment", "jaxport-serve"), "selector"),
    "a kind": put(lambda p: p.of("Service", "jaxport"), kind="Servce"),
    "a version of a kind": put(lambda p: p.of("HorizontalPodAutoscaler", "jaxport-serve"), apiVersion="autoscaling/v3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.policy.__name__}: {fault.words}")
def test_a_planted_fault_is_found(fault: Fault) -> None:
    planted = Planted(fault.output)
    before = list(fault.policy(planted.objects))
    fault.plant(planted)
    said = [each for each in fault.policy(planted.objects) if each not in before]
    assert any(fault.words in each for each in said), said


def test_every_policy_has_found_a_fault() -> None:
    assert {fault.policy for fault in FAULTS} == set(POLICIES)


@pytest.mark.parametrize("what", MISSPELT)
def test_what_is_misspelt_is_found_by_the_schemas(what: str) -> None:
    planted = Planted(PLAIN)
    MISSPELT[what](planted)
    for version in ("1.31", "1.36"):
        assert [said for each in planted.objects for said in problems(each, version)] != []


def test_a_field_of_an_optional_kind_that_is_not_known_is_found() -> None:
    planted = Planted(KEDA)
    planted.spec("ScaledObject", "jaxport-serve")["minReplicas"] = 1
    said = list(problems(planted.of("ScaledObject", "jaxport-serve"), "1.34"))
    assert said == ["ScaledObject jaxport-serve: spec.minReplicas: not a field that is known here"]
