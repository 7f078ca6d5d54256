"""Faults that the policies of pods have to find."""

from typing import Any

from tests.deploy.faults.planted import HOSTS, JOBSET, METRICS, Fault, Planted, cut, put, replaced
from tests.deploy.policies import pods


def context(planted: Planted) -> Any:
    return planted.server["securityContext"]


FAULTS = (
    Fault(
        pods.images_are_pinned,
        "a tag other than latest",
        put(lambda p: p.server, image="localhost/jaxport/serve"),
    ),
    Fault(
        pods.images_are_pinned, "latest", put(lambda p: p.envoy, image="envoyproxy/envoy:distroless-latest")
    ),
    Fault(
        pods.images_have_the_versions_of_the_project,
        "0.0.9",
        replaced(lambda p: p.trainer, "image", "0.1.0", "0.0.9"),
    ),
    Fault(
        pods.images_have_the_versions_of_the_project,
        "ends with -cuda12",
        replaced(lambda p: p.server, "image", "0.1.0-cuda12", "0.1.0-latest"),
    ),
    Fault(
        pods.images_are_pinned,
        "a tag other than latest",
        replaced(lambda p: p.server, "image", "0.1.0", "latest"),
    ),
    Fault(
        pods.images_have_the_versions_of_the_project,
        "-cpu",
        cut(lambda p: p.trainer["resources"]["limits"], "nvidia.com/gpu"),
    ),
    Fault(
        pods.images_have_the_versions_of_the_project,
        "the tests run",
        replaced(lambda p: p.envoy, "image", "1.40.0", "1.39.0"),
    ),
    Fault(
        pods.resources_are_bounded, "limits.memory", cut(lambda p: p.server["resources"]["limits"], "memory")
    ),
    Fault(
        pods.resources_are_bounded,
        "requests.cpu",
        put(lambda p: p.trainer["resources"]["requests"], cpu="2 cores"),
    ),
    Fault(
        pods.resources_are_bounded,
        "memory: 9Gi requested",
        put(lambda p: p.server["resources"]["requests"], memory="9Gi"),
    ),
    Fault(pods.scratch_is_bounded, "sizeLimit", lambda p: p.train["volumes"][1]["emptyDir"].clear()),
    Fault(
        pods.scratch_is_bounded,
        "no emptyDir at /tmp",
        put(lambda p: p.server["volumeMounts"][1], mountPath="/temp"),
    ),
    Fault(
        pods.scratch_fits_the_limits,
        "emptyDirs ['tmp'] may hold 4294967296; its limit of ephemeral-storage",
        put(lambda p: p.train["volumes"][1]["emptyDir"], sizeLimit="4Gi"),
    ),
    Fault(
        pods.scratch_fits_the_limits,
        "its limit of memory",
        put(lambda p: p.train["volumes"][2]["emptyDir"], sizeLimit="8Gi"),
    ),
    Fault(
        pods.shared_memory_is_where_it_is_looked_for,
        "no emptyDir in Memory at /dev/shm",
        put(lambda p: p.trainer["volumeMounts"][2], mountPath="/work/shm"),
    ),
    Fault(
        pods.shared_memory_is_where_it_is_looked_for,
        "JobSet jaxport-train: container train: no emptyDir in Memory",
        cut(lambda p: next(v for v in p.processes["volumes"] if v["name"] == "shm")["emptyDir"], "medium"),
        JOBSET,
    ),
    Fault(
        pods.gpus_are_tolerated,
        "NoExecute",
        lambda p: p.serve["tolerations"][0].update(effect="NoExecute"),
    ),
    Fault(pods.gpus_are_tolerated, "nvidia.com/gpu: []", cut(lambda p: p.warm, "tolerations")),
    Fault(
        pods.nodes_are_known,
        "nodeSelector cloud.google.com/gke-sopt",
        put(lambda p: p.train["nodeSelector"], **{"cloud.google.com/gke-sopt": "true"}),
        HOSTS,
    ),
    Fault(
        pods.nodes_are_known,
        "tolerations cloud.google.com/gke-sopt",
        lambda p: p.train["tolerations"].append({"key": "cloud.google.com/gke-sopt", "operator": "Exists"}),
        HOSTS,
    ),
    Fault(
        pods.nodes_are_known,
        "topologySpreadConstraints topology.kubernetes.io/zones",
        put(lambda p: p.serve["topologySpreadConstraints"][1], topologyKey="topology.kubernetes.io/zones"),
    ),
    Fault(
        pods.nodes_are_known,
        "affinity kubernetes.io/hostnam",
        put(
            lambda p: p.serve,
            affinity={
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostnam"}
                    ]
                }
            },
        ),
    ),
    Fault(
        pods.gpus_are_chosen_alike,
        "Job jaxport-train: no nodeSelector",
        cut(lambda p: p.train["nodeSelector"], "cloud.google.com/gke-accelerator"),
        HOSTS,
    ),
    Fault(pods.pods_are_restricted, "runAsUser: 0", put(lambda p: p.serve["securityContext"], runAsUser=0)),
    Fault(
        pods.pods_are_restricted,
        "seccompProfile",
        cut(lambda p: p.train["securityContext"], "seccompProfile"),
    ),
    Fault(pods.pods_are_restricted, "hostPath", put(lambda p: p.train["volumes"][1], hostPath={"path": "/"})),
    Fault(pods.pods_are_restricted, "hostNetwork", put(lambda p: p.serve, hostNetwork=True)),
    Fault(pods.containers_are_restricted, "capabilities", put(context, capabilities={"drop": []})),
    Fault(pods.containers_are_restricted, "readOnlyRootFilesystem", cut(context, "readOnlyRootFilesystem")),
    Fault(
        pods.containers_are_restricted,
        "runAsUser: left to the pod",
        put(lambda p: p.envoy["securityContext"], runAsUser=101),
    ),
    Fault(
        pods.tokens_are_not_mounted,
        "Deployment jaxport-serve",
        cut(lambda p: p.serve, "automountServiceAccountToken"),
    ),
    Fault(
        pods.tokens_are_not_mounted,
        "ServiceAccount",
        cut(lambda p: p.of("ServiceAccount", "jaxport-serve"), "automountServiceAccountToken"),
    ),
    Fault(
        pods.tokens_are_not_mounted,
        "adapter",
        lambda p: (
            [
                p.drop("ClusterRoleBinding", n)
                for n in ("jaxport-metrics-delegator", "jaxport-metrics-resources")
            ]
            and p.drop("RoleBinding", "jaxport-metrics-reader")
        ),
        METRICS,
    ),
    Fault(pods.service_variables_are_off, "enableServiceLinks", cut(lambda p: p.serve, "enableServiceLinks")),
    Fault(
        pods.namespaces_are_restricted,
        "namespace ''",
        cut(lambda p: p.of("Service", "jaxport")["metadata"], "namespace"),
    ),
    Fault(pods.namespaces_are_restricted, "comes before its Namespace", lambda p: p.objects.reverse()),
    Fault(
        pods.namespaces_are_restricted,
        "not enforced",
        put(
            lambda p: p.of("Namespace", "jaxport")["metadata"]["labels"],
            **{"pod-security.kubernetes.io/enforce": "baseline"},
        ),
    ),
)
