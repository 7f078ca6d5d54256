"""Of the way of a call: Services lead to the listener for gRPC, and NetworkPolicies let through what has to pass alone."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Literal

from tests.deploy.objects import ROOT, Object, Objects, Pod, named, namespace, of_kind, pods, selected
from tests.deploy.policies.server import fronted

Port = tuple[str, object]
Labels = Mapping[str, str]
Direction = Literal["ingress", "egress"]

H2C = "kubernetes.io/h2c"
EVERY: Port = ("any", "port")
NAMESPACE = "kubernetes.io/metadata.name"
# A pod of the namespace that somebody starts by hand: no stage.
CLIENT: Labels = {}
# Who answers for names outside of kube-system's pods: NodeLocal DNSCache, and Cloud DNS at GKE's metadata server.
RESOLVERS = {"169.254.20.10/32", "169.254.169.254/32"}


@cache
def _documented(file: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / "docs" / file).read_text())
    assert found, f"docs/{file} does not say any more: {pattern}"
    return found[1]


def client_label() -> Labels:
    """What docs/operations.md says a namespace of clients carries."""
    key, _, value = _documented("operations.md", r"one that carries the label `(\S+?=\S+?)`").partition("=")
    return {key: value}


def collectors() -> set[str]:
    """The namespaces of those who scrape, as docs/monitoring.md has them."""
    return set(re.split(r", | and ", _documented("monitoring.md", r"lets in the namespaces ([\w, -]+) only")))


def matches(selector: Object, labels: Labels) -> bool:
    """Kubernetes' label selector. Raises ValueError for an operator that it has not."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        _holds(each, labels) for each in selector.get("matchExpressions", [])
    )


def _holds(requirement: Object, labels: Labels) -> bool:
    key, operator = requirement["key"], requirement["operator"]
    if operator in ("In", "NotIn"):
        return (labels.get(key) in requirement["values"]) == (operator == "In")
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) == (operator == "Exists")
    raise ValueError(f"operator {operator}")


def _rules(objects: Objects, where: str, direction: Direction, labels: Labels) -> Iterator[Object]:
    """The rules for a pod with these labels."""
    for each in of_kind(objects, "NetworkPolicy"):
        if namespace(each) == where and matches(each["spec"]["podSelector"], labels):
            yield from each["spec"].get(direction, [])


def _peers(rule: Object) -> list[Object]:
    return rule.get("from", rule.get("to", []))


def _ports(rules: Iterable[Object]) -> set[Port]:
    return {
        port
        for rule in rules
        for port in ({(p.get("protocol", "TCP"), p["port"]) for p in rule.get("ports", [])} or {EVERY})
    }


def opened(objects: Objects, where: str, direction: Direction, labels: Labels, peer: Labels) -> set[Port]:
    """The ports at which a pod of a namespace is let in by, or out to, another pod of it."""
    return _ports(
        rule
        for rule in _rules(objects, where, direction, labels)
        if any(
            not each.keys() & {"ipBlock", "namespaceSelector"} and matches(each["podSelector"], peer)
            for each in _peers(rule)
        )
    )


def _somebody(objects: Objects, where: str) -> list[tuple[str, Labels]]:
    return [
        ("a pod that is no stage", CLIENT),
        *((str(p), p.labels) for p in pods(objects) if p.namespace == where),
    ]


def services_lead_to_the_listener(objects: Objects) -> Iterator[str]:
    """Of gRPC: at Envoy's listener of that name, by an address of the Service and by those of the pods."""
    for pod, _, envoy, config in fronted(objects):
        target = listener(config, "grpc")
        found = [(s, port) for s in of_kind(objects, "Service")
                 if namespace(s) == pod.namespace and matches({"matchLabels": s["spec"]["selector"]}, pod.labels)
                 for port in s["spec"]["ports"] if port.get("name") == "grpc" or "appProtocol" in port]  # fmt: skip
        if {s["spec"].get("clusterIP") for s, _ in found} != {None, "None"}:
            yield f"{pod}: needs a Service for gRPC with an address, and a headless one: {[named(s) for s, _ in found]}"
        for service, port in found:
            if port.get("targetPort", port["port"]) != target:
                yield f"{named(service)}: targetPort {port.get('targetPort')}; Envoy's listener for gRPC is at {target}"
            if service["spec"].get("clusterIP") == "None" and port["port"] != target:
                yield f"{named(service)}: port {port['port']}; headless, it leads to nothing but {target}"
            wanted = None if any("jaxport.tls" in word for word in envoy.args) else H2C
            if port.get("appProtocol") != wanted:
                yield f"{named(service)}: appProtocol {port.get('appProtocol')}; needed: {wanted}"


def listener(config: Mapping[str, object], name: str) -> object:
    """The port of Envoy's listener; None if there is none of that name."""
    resources: Object = config.get("static_resources", {})  # pyright: ignore[reportAssignmentType]
    return next((each["address"]["socket_address"]["port_value"] for each in resources.get("listeners", [])
                 if each["name"] == name), None)  # fmt: skip


def selectors_meet_somebody(objects: Objects) -> Iterator[str]:
    """A selector that no pod answers to opens nothing; a value that no pod has excludes nobody."""
    for each in of_kind(objects, "NetworkPolicy"):
        rules = [rule for way in ("ingress", "egress") for rule in each["spec"].get(way, [])]
        here = [peer["podSelector"] for rule in rules for peer in _peers(rule)
                if "podSelector" in peer and "namespaceSelector" not in peer]  # fmt: skip
        labels = [pod.labels for pod in pods(objects) if pod.namespace == namespace(each)]
        for selector in [each["spec"]["podSelector"], *here]:
            excluding = [e for e in selector.get("matchExpressions", []) if e["operator"] == "NotIn"]
            for requirement in excluding:
                known = {found.get(requirement["key"]) for found in labels}
                for value in set(requirement["values"]) - known:
                    yield f"{named(each)}: no pod has {requirement['key']}: {value}, which it excludes"
            if not excluding and not any(matches(selector, found) for found in labels):
                yield f"{named(each)}: no pod answers to {selector}"


def what_is_let_out_is_let_in(objects: Objects) -> Iterator[str]:
    """Both ends have to agree, or the call hangs until it times out."""
    for where in sorted({namespace(each) for each in of_kind(objects, "NetworkPolicy")}):
        for name, labels in _somebody(objects, where):
            for pod in (each for each in pods(objects) if each.namespace == where):
                let_in = opened(objects, where, "ingress", pod.labels, labels)
                for port in opened(objects, where, "egress", labels, pod.labels) - let_in:
                    if EVERY not in let_in:
                        yield f"{pod}: {name} is let out to it at {port}, and let in at {sorted(let_in, key=str)}"


def clients_alone_call_servers(objects: Objects) -> Iterator[str]:
    for server, _, _, config in fronted(objects):
        port = ("TCP", listener(config, "grpc"))
        for name, labels in _somebody(objects, server.namespace):
            ways = (opened(objects, server.namespace, "egress", labels, server.labels),
                    opened(objects, server.namespace, "ingress", server.labels, labels))  # fmt: skip
            if all({port, EVERY} & way for way in ways) != (labels is CLIENT):
                yield f"{server}: {name} {'may not' if labels is CLIENT else 'may'} call it at {port[1]}"
        if not any(peer == {"namespaceSelector": {"matchLabels": client_label()}}
                   for rule in _rules(objects, server.namespace, "ingress", server.labels)
                   if port in _ports([rule]) for peer in _peers(rule)):  # fmt: skip
            yield f"{server}: namespaces with the label {client_label()} of docs/operations.md may not call it"


def namespaces_are_those_of_the_documents(objects: Objects) -> Iterator[str]:
    """A label that no namespace carries lets nobody in, and nobody is told."""
    of_collectors = {
        "matchExpressions": [{"key": NAMESPACE, "operator": "In", "values": sorted(collectors())}]
    }
    known = [{"matchLabels": client_label()}, {"matchLabels": {NAMESPACE: "kube-system"}}, of_collectors]
    for each in of_kind(objects, "NetworkPolicy"):
        for way in ("ingress", "egress"):
            for peer in (peer for rule in each["spec"].get(way, []) for peer in _peers(rule)):
                selector = peer.get("namespaceSelector")
                if selector is not None and _sorted(selector) not in known:
                    yield f"{named(each)}: namespaceSelector {selector} is none that docs/ name"
                if "ipBlock" in peer and peer["ipBlock"].get("cidr") not in RESOLVERS:
                    yield f"{named(each)}: ipBlock {peer['ipBlock']}: nobody who answers for names is there"


def _sorted(selector: Object) -> Object:
    if "matchExpressions" not in selector:
        return selector
    found = [{**e, "values": sorted(e.get("values", []))} for e in selector["matchExpressions"]]
    return {**selector, "matchExpressions": found}


def scraped_ports_are_there(objects: Objects) -> Iterator[str]:
    """Whoever scrapes finds a port of that name or number, and is let in at it."""
    for each in of_kind(objects, "PodMonitoring", "PodMonitor", "ServiceMonitor"):
        endpoints = each["spec"].get("endpoints", each["spec"].get("podMetricsEndpoints", []))
        for pod in _scraped(objects, each):
            for endpoint in endpoints:
                if endpoint.get("path") != "/metrics":
                    yield f"{named(each)}: path {endpoint.get('path')}; needed: /metrics"
                number = _number(_asked(objects, each, endpoint["port"]), pod)
                if number is None:
                    yield f"{named(each)}: port {endpoint['port']!r}: {pod} has no such port"
                elif not _collected(objects, pod, number):
                    yield f"{named(each)}: port {endpoint['port']!r}: no NetworkPolicy lets collectors in at {number}"


def _scraped(objects: Objects, monitor: Object) -> list[Pod]:
    labels = monitor["spec"]["selector"]["matchLabels"]
    if monitor["kind"] != "ServiceMonitor":
        return selected(objects, labels, namespace(monitor))
    return [pod for service in _services(objects, monitor)
            for pod in selected(objects, service["spec"]["selector"], namespace(service))]  # fmt: skip


def _services(objects: Objects, monitor: Object) -> list[Object]:
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    return [s for s in of_kind(objects, "Service") if wanted <= s["metadata"]["labels"].items()]


def _asked(objects: Objects, monitor: Object, port: object) -> object:
    """The port of the pod: of a ServiceMonitor, the one that the Service's leads to."""
    if monitor["kind"] != "ServiceMonitor":
        return port
    return next((p.get("targetPort", p["port"]) for s in _services(objects, monitor) for p in s["spec"]["ports"]
                 if p.get("name") == port), None)  # fmt: skip


def _number(port: object, pod: Pod) -> int | None:
    return next((p["containerPort"] for c in pod.containers for p in c.ports
                 if port in (p["containerPort"], p.get("name"))), None)  # fmt: skip


def _collected(objects: Objects, pod: Pod, number: int) -> bool:
    rules = _rules(objects, pod.namespace, "ingress", pod.labels)
    return any(
        ("TCP", number) in _ports([rule]) and any(NAMESPACE in str(peer) for peer in _peers(rule))
        for rule in rules
    )


POLICIES = (
    services_lead_to_the_listener,
    selectors_meet_somebody,
    what_is_let_out_is_let_in,
    clients_alone_call_servers,
    namespaces_are_those_of_the_documents,
    scraped_ports_are_there,
)
