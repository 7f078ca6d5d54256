"""Objects against the schemas of Kubernetes, from PyPI kubernetes-validate: unknown fields are refused."""

from collections.abc import Iterator
from functools import cache

from kubernetes_validate import SchemaNotFoundError, ValidationError, utils, validate

from tests.deploy.objects import Object, named

VERSIONS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
# What no schema of Kubernetes knows: kinds of others, in deploy/optional. Spec -> what it must have, what it may have.
OTHERS = {
    ("monitoring.googleapis.com/v1", "PodMonitoring"): ({"selector", "endpoints"}, {"targetLabels"}),
    ("monitoring.googleapis.com/v1", "Rules"): ({"groups"}, set()),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): ({"selector", "endpoints"}, {"namespaceSelector"}),
    ("monitoring.coreos.com/v1", "PodMonitor"): ({"selector", "podMetricsEndpoints"}, {"namespaceSelector"}),
    ("monitoring.coreos.com/v1", "PrometheusRule"): ({"groups"}, set()),
    ("keda.sh/v1alpha1", "ScaledObject"): (
        {"scaleTargetRef", "triggers"},
        {"minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "advanced", "fallback"},
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): (
        {"replicatedJobs"},
        {"network", "failurePolicy", "successPolicy", "suspend"},
    ),
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): (set(), {"nodeLabels", "nodeTaints", "tolerations"}),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"): (
        {"namespaceSelector", "resourceGroups"},
        {"cohortName", "queueingStrategy", "preemption", "admissionChecksStrategy"},
    ),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"): ({"clusterQueue"}, {"stopPolicy"}),
    ("kueue.x-k8s.io/v1beta2", "AdmissionCheck"): ({"controllerName"}, {"parameters"}),
    ("kueue.x-k8s.io/v1beta2", "ProvisioningRequestConfig"): (
        {"provisioningClassName"},
        {"managedResources", "parameters", "podSetMergePolicy", "podSetUpdates", "retryStrategy"},
    ),
    ("gateway.networking.k8s.io/v1", "Gateway"): ({"gatewayClassName", "listeners"}, {"addresses"}),
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): ({"parentRefs", "rules"}, {"hostnames"}),
}  # fmt: skip

# It reads and parses 1.5 MB for every object; nothing here changes what it reads.
utils.schema_contents = cache(utils.schema_contents)


def problems(each: Object, version: str) -> Iterator[str]:
    """What is wrong with an object for a Kubernetes version, one line each."""
    kind = (each.get("apiVersion"), each.get("kind"))
    if kind in OTHERS:
        yield from _others(each, *OTHERS[kind])
        return
    try:
        validate(each, version, strict=True)
    except ValidationError as error:
        yield f"{named(each)}, Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}"
    except (SchemaNotFoundError, KeyError) as error:
        yield f"{named(each)}, Kubernetes {version}: no such kind: {error!r}"


def _others(each: Object, needed: set[str], allowed: set[str]) -> Iterator[str]:
    for key in each.keys() - {"apiVersion", "kind", "metadata", "spec"}:
        yield f"{named(each)}: {key}: not a field of it"
    spec = each.get("spec", {})
    for key in spec.keys() - needed - allowed:
        yield f"{named(each)}: spec.{key}: not a field that is known here"
    for key in needed - spec.keys():
        yield f"{named(each)}: spec.{key} is missing"
