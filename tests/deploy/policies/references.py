"""Of names: whatever an object points at is there, and is what it takes it for."""

import re
from collections.abc import Iterator
from functools import cache

from tests.deploy.objects import (
    DEPLOY,
    Object,
    Objects,
    Pod,
    named,
    namespace,
    of_kind,
    parsed,
    pods,
    selected,
)

NAME = re.compile(r"^[a-z0-9]([-a-z0-9.:]*[a-z0-9])?$")
# Services of others that stages may point at.
METRIC = re.compile(r"\bjaxport_[a-z_]+")
DNS = {("UDP", 53), ("TCP", 53)}


def _names(objects: Objects, where: str, *kinds: str) -> set[str]:
    return {each["metadata"]["name"] for each in of_kind(objects, *kinds) if namespace(each) == where}


def names_and_labels_are_right(objects: Objects) -> Iterator[str]:
    seen: set[tuple[str, str, str]] = set()
    for each in objects:
        if not NAME.match(each["metadata"]["name"]):
            yield f"{named(each)}: no DNS name"
        if not each["metadata"].get("labels", {}).get("app.kubernetes.io/name"):
            yield f"{named(each)}: no label app.kubernetes.io/name"
        key = (each["kind"], namespace(each), each["metadata"]["name"])
        if key in seen:
            yield f"{named(each)} is there twice"
        seen.add(key)


def what_pods_name_is_there(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        if pod.spec.get("serviceAccountName") not in _names(objects, pod.namespace, "ServiceAccount"):
            yield f"{pod}: no ServiceAccount {pod.spec.get('serviceAccountName')}"
        priority = pod.spec.get("priorityClassName")
        if priority and priority not in _names(objects, "", "PriorityClass"):
            yield f"{pod}: no PriorityClass {priority}"
        for volume in pod.spec.get("volumes", []):
            yield from (f"{pod}: volume {volume['name']}: {said}" for said in _missing(objects, pod, volume))
        yield from _mounts(pod)


def _missing(objects: Objects, pod: Pod, volume: Object) -> Iterator[str]:
    claim = volume.get("persistentVolumeClaim", {}).get("claimName")
    config = volume.get("configMap", {}).get("name")
    if claim and claim not in _names(objects, pod.namespace, "PersistentVolumeClaim"):
        yield f"no PersistentVolumeClaim {claim}"
    if config and config not in _names(objects, pod.namespace, "ConfigMap"):
        yield f"no ConfigMap {config}"
    secret = volume.get("secret")
    if secret and "envoy" not in str(volume["name"]):
        yield f"Secret {secret.get('secretName')}: only Envoy has one"


def _mounts(pod: Pod) -> Iterator[str]:
    used: set[str] = set()
    for each in pod.containers:
        for mount in each.spec.get("volumeMounts", []):
            used.add(mount["name"])
            if pod.volume(mount["name"]) is None:
                yield f"{each}: no volume {mount['name']}"
    for volume in pod.spec.get("volumes", []):
        if volume["name"] not in used:
            yield f"{pod}: nothing mounts volume {volume['name']}"


def secrets_are_optional_where_none_is_made(objects: Objects) -> Iterator[str]:
    """A Secret comes from elsewhere: without it the plain manifests have to come up all the same."""
    for pod in pods(objects):
        for volume in pod.spec.get("volumes", []):
            secret = volume.get("secret")
            needs_tls = any("jaxport.tls" in word for c in pod.containers for word in c.args)
            if secret and not needs_tls and not secret.get("optional"):
                yield f"{pod}: volume {volume['name']}: Secret {secret['secretName']} is not optional"


def classes_of_storage_are_there(objects: Objects) -> Iterator[str]:
    for claim in of_kind(objects, "PersistentVolumeClaim"):
        name = claim["spec"].get("storageClassName")
        if name and name not in _names(objects, "", "StorageClass"):
            yield f"{named(claim)}: no StorageClass {name}"


def services_reach_pods(objects: Objects) -> Iterator[str]:
    for each in of_kind(objects, "Service"):
        if namespace(each) == "jaxport" and each["spec"].get("type") != "ClusterIP":
            yield f"{named(each)}: type {each['spec'].get('type')}: nothing is open to the outside"
        found = selected(objects, each["spec"]["selector"], namespace(each))
        if not found:
            yield f"{named(each)}: selects no pod: {each['spec']['selector']}"
        for pod in found:
            for port in each["spec"]["ports"]:
                yield from _target(each, port, pod)


def _target(service: Object, port: Object, pod: Pod) -> Iterator[str]:
    target = port.get("targetPort", port["port"])
    for each in pod.containers:
        for declared in each.ports:
            if target == declared["containerPort"]:
                return
            if target == declared.get("name"):
                if each.sidecar:
                    yield f"{named(service)}: targetPort {target!r} names a sidecar's; before 1.33 it needs a number"
                return
    yield f"{named(service)}: targetPort {target!r}: {pod} has no such port"


def selectors_match(objects: Objects) -> Iterator[str]:
    for each in of_kind(
        objects, "PodDisruptionBudget", "NetworkPolicy", "PodMonitoring", "PodMonitor", "Deployment"
    ):
        spec = each["spec"]
        labels = spec.get("selector", spec.get("podSelector", {})).get("matchLabels")
        if labels is not None and not selected(objects, labels, namespace(each)):
            yield f"{named(each)}: selects no pod: {labels}"
    for each in of_kind(objects, "ServiceMonitor"):
        wanted = each["spec"]["selector"]["matchLabels"].items()
        services = [s for s in of_kind(objects, "Service") if wanted <= s["metadata"]["labels"].items()]
        ports = {port["name"] for s in services for port in s["spec"]["ports"]}
        if len(services) != 1 or not {e["port"] for e in each["spec"]["endpoints"]} <= ports:
            yield f"{named(each)}: selects {[named(s) for s in services]} with ports {sorted(ports)}"


def nothing_is_open_that_is_not_named(objects: Objects) -> Iterator[str]:
    denying = {namespace(p) for p in of_kind(objects, "NetworkPolicy") if p["spec"]["podSelector"] == {}
               and set(p["spec"]["policyTypes"]) == {"Ingress", "Egress"} and not p["spec"].keys() & {"ingress", "egress"}}  # fmt: skip
    if "jaxport" not in denying:
        yield "no NetworkPolicy denies by default in jaxport"
    for each in of_kind(objects, "NetworkPolicy"):
        labels = each["spec"]["podSelector"].get("matchLabels", {})
        found = selected(objects, labels, namespace(each)) if labels else []
        declared = {p["containerPort"] for pod in found for c in pod.containers for p in c.ports}
        for rule in each["spec"].get("ingress", []):
            if not rule.get("from"):
                yield f"{named(each)}: lets everybody in"
            for port in rule.get("ports", []):
                if port["port"] not in declared:
                    yield f"{named(each)}: opens {port['port']}, which none of its pods has: {sorted(declared)}"
        if any(not rule.get("to") for rule in each["spec"].get("egress", [])):
            yield f"{named(each)}: lets its pods out to everywhere"


def names_can_be_asked(objects: Objects) -> Iterator[str]:
    """DNS is 53, by UDP and, for long answers, by TCP: to the cluster's own servers, for every pod."""
    asked = False
    for each in of_kind(objects, "NetworkPolicy"):
        for rule in each["spec"].get("egress", []):
            spaces = [to.get("namespaceSelector", {}).get("matchLabels", {}) for to in rule.get("to", [])]
            if {"kubernetes.io/metadata.name": "kube-system"} not in spaces:
                continue
            ports = {(port.get("protocol"), port.get("port")) for port in rule.get("ports", [])}
            if ports != DNS:
                yield f"{named(each)}: names by {sorted(ports, key=str)}; needed: {sorted(DNS)}"
            asked |= namespace(each) == "jaxport" and each["spec"]["podSelector"] == {}
    if not asked:
        yield "no NetworkPolicy lets all pods of jaxport ask kube-system for names"


def served_ports_are_let_in(objects: Objects) -> Iterator[str]:
    """What a Service leads to, the policies let through."""
    for each in of_kind(objects, "Service"):
        for pod in selected(objects, each["spec"]["selector"], "jaxport"):
            rules = [rule for p in of_kind(objects, "NetworkPolicy") if namespace(p) == "jaxport"
                     and (p["spec"]["podSelector"].get("matchLabels") or {"": ""}).items() <= pod.labels.items()
                     for rule in p["spec"].get("ingress", [])]  # fmt: skip
            numbers = {p["containerPort"] for c in pod.containers for p in c.ports for s in each["spec"]["ports"]
                       if s.get("targetPort", s["port"]) in (p["containerPort"], p.get("name"))}  # fmt: skip
            for number in numbers:
                let_in = [r for r in rules if "ports" not in r or ("TCP", number) in
                          {(p.get("protocol", "TCP"), p["port"]) for p in r["ports"]}]  # fmt: skip
                if not let_in:
                    yield f"{named(each)}: no NetworkPolicy lets anybody in at {number} of {pod}"


def scalers_and_routes_have_targets(objects: Objects) -> Iterator[str]:
    for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = each["spec"]["scaleTargetRef"]
        found = [d for d in of_kind(objects, target["kind"]) if d["metadata"]["name"] == target["name"]]
        if not found or target.get("apiVersion") != found[0]["apiVersion"]:
            yield f"{named(each)}: no {target['kind']} {target['name']}"
            continue
        names = {c.name for c in Pod(found[0], found[0]["spec"]["template"]).containers}
        asked = {
            m["containerResource"]["container"]
            for m in each["spec"].get("metrics", [])
            if "containerResource" in m
        }
        asked |= {
            t["metadata"]["containerName"] for t in each["spec"].get("triggers", []) if t["type"] == "cpu"
        }
        if not asked <= names:
            yield f"{named(each)}: measures {sorted(asked)}, of containers {sorted(names)}"
    ports = {
        s["metadata"]["name"]: {p["port"] for p in s["spec"]["ports"]} for s in of_kind(objects, "Service")
    }
    for each in of_kind(objects, "GRPCRoute"):
        for backend in (b for rule in each["spec"]["rules"] for b in rule["backendRefs"]):
            if backend["port"] not in ports.get(backend["name"], ()):
                yield f"{named(each)}: no Service {backend['name']} with port {backend['port']}"


def metrics_exist(objects: Objects) -> Iterator[str]:
    for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject", "ConfigMap"):
        if each["metadata"]["name"] == "jaxport-envoy":
            continue
        for name in sorted(set(METRIC.findall(str(each)))):
            if name not in _series() and name not in _made_by_adapter():
                yield f"{named(each)}: the server has no series {name}"


@cache
def _series() -> set[str]:
    """Names of the series there are, as they are asked for."""
    from tests.monitoring.known import known

    return set(known().labels)


@cache
def _made_by_adapter() -> set[str]:
    """Names that the adapter of overlays/queue-time gives."""
    text = (DEPLOY / "overlays" / "queue-time" / "adapter.yaml").read_text()
    rules = next(each for each in parsed(text) if each["kind"] == "ConfigMap")["data"]["config.yaml"]
    return {rule["name"]["as"] for rule in parsed(rules)[0]["rules"]}


POLICIES = (
    names_and_labels_are_right,
    what_pods_name_is_there,
    secrets_are_optional_where_none_is_made,
    classes_of_storage_are_there,
    services_reach_pods,
    selectors_match,
    nothing_is_open_that_is_not_named,
    names_can_be_asked,
    served_ports_are_let_in,
    scalers_and_routes_have_targets,
    metrics_exist,
)
