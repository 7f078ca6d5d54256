"""What an API server checks beyond its schemas, as far as these objects come near it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.deploy.objects import Container, Objects, Pod, named, of_kind, pods

LABEL = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
PORT_NAME = re.compile(r"^(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$")


def _twice(values: Iterable[object]) -> list[object]:
    return [value for value, count in Counter(values).items() if count > 1]


def lists_have_no_twins(objects: Objects) -> Iterator[str]:
    """Names of containers, volumes and variables, ports of a pod, paths of mounts."""
    for pod in pods(objects):
        several = {
            "containers": [c.name for c in pod.containers],
            "volumes": [v["name"] for v in pod.spec.get("volumes", [])],
            "ports": [p["containerPort"] for c in pod.containers for p in c.ports],
            "port names": [p["name"] for c in pod.containers for p in c.ports if "name" in p],
        }
        for what, values in several.items():
            yield from (f"{pod}: {what}: {value} is there twice" for value in _twice(values))
        for each in pod.containers:
            for what, key in (("env", "name"), ("volumeMounts", "mountPath")):
                values = [v[key] for v in each.spec.get(what, [])]
                yield from (f"{each}: {what}: {value} is there twice" for value in _twice(values))


def names_are_short_enough(objects: Objects) -> Iterator[str]:
    for each in objects:
        for key, value in each["metadata"].get("labels", {}).items():
            if not LABEL.match(value):
                yield f"{named(each)}: label {key}: {value!r}"
    for pod in pods(objects):
        for each in pod.containers:
            yield from _ports(each)
        # An Indexed Job's pods are named by it, its index and five letters, and that is their host name.
        if pod.job is not None and len(pod.owner["metadata"]["name"]) > 50:
            yield f"{pod}: its pods need a name of 63 letters at most"


def _ports(each: Container) -> Iterator[str]:
    for port in each.ports:
        if not PORT_NAME.match(port.get("name", "")):
            yield f"{each}: port name {port.get('name')!r}: needed: 1 to 15 of a-z, 0-9 and -"


def exit_codes_are_in_order(objects: Objects) -> Iterator[str]:
    for pod in pods(objects):
        for rule in _rules(pod):
            codes = rule.get("onExitCodes", {}).get("values", [])
            if codes != sorted(set(codes)) or 0 in codes:
                yield f"{pod}: podFailurePolicy: {codes}: needed: exit codes in order, without 0"
            if ("onExitCodes" in rule) == ("onPodConditions" in rule):
                yield f"{pod}: podFailurePolicy: a rule has exit codes or conditions"


def _rules(pod: Pod) -> list[dict]:
    return (pod.job or {}).get("podFailurePolicy", {}).get("rules", [])


def bounds_are_in_order(objects: Objects) -> Iterator[str]:
    for each in of_kind(objects, "HorizontalPodAutoscaler"):
        if each["spec"].get("minReplicas", 1) > each["spec"]["maxReplicas"]:
            yield f"{named(each)}: minReplicas is beyond maxReplicas"
    for each in of_kind(objects, "Deployment"):
        if each["spec"].get("progressDeadlineSeconds", 600) <= each["spec"].get("minReadySeconds", 0):
            yield f"{named(each)}: progressDeadlineSeconds is not beyond minReadySeconds"
        rolling = each["spec"].get("strategy", {}).get("rollingUpdate", {})
        if rolling.get("maxUnavailable") == 0 and rolling.get("maxSurge", 1) == 0:
            yield f"{named(each)}: neither one more nor one less: nothing could roll"
    for each in of_kind(objects, "PodDisruptionBudget"):
        if ("maxUnavailable" in each["spec"]) == ("minAvailable" in each["spec"]):
            yield f"{named(each)}: needs one of maxUnavailable and minAvailable"


POLICIES = (lists_have_no_twins, names_are_short_enough, exit_codes_are_in_order, bounds_are_in_order)
