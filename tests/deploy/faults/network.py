"""Faults on the way of a call: it is led to the wrong port, or let through at one end alone."""

from typing import Any

from tests.deploy.faults.planted import (
    HOSTS,
    JOBSET,
    MANAGED,
    MONITOR,
    SCRAPED,
    TLS,
    Fault,
    Planted,
    cut,
    put,
)
from tests.deploy.policies import network


def ingress(planted: Planted, name: str, rule: int = 0) -> Any:
    return planted.spec("NetworkPolicy", name)["ingress"][rule]


FAULTS = (
    *(
        Fault(
            network.services_lead_to_the_listener,
            f"Service {name}: targetPort 8502",
            put(lambda p, name=name: p.spec("Service", name)["ports"][0], targetPort=8502),
        )
        for name in ("jaxport", "jaxport-headless")
    ),
    Fault(
        network.services_lead_to_the_listener,
        "port 80; headless",
        put(lambda p: p.spec("Service", "jaxport-headless")["ports"][0], port=80),
    ),
    Fault(
        network.services_lead_to_the_listener,
        "appProtocol kubernetes.io/ws; needed: kubernetes.io/h2c",
        put(lambda p: p.spec("Service", "jaxport")["ports"][0], appProtocol="kubernetes.io/ws"),
    ),
    Fault(
        network.services_lead_to_the_listener,
        "appProtocol kubernetes.io/h2c; needed: None",
        put(lambda p: p.spec("Service", "jaxport")["ports"][0], appProtocol="kubernetes.io/h2c"),
        TLS,
    ),
    Fault(
        network.services_lead_to_the_listener,
        "and a headless one",
        cut(lambda p: p.spec("Service", "jaxport-headless"), "clusterIP"),
    ),
    Fault(
        network.selectors_meet_somebody,
        "no pod has app.kubernetes.io/component: trian",
        lambda p: p.spec("NetworkPolicy", "clients")["podSelector"]["matchExpressions"][0].update(
            values=["trian", "export", "warm", "serve"]
        ),
    ),
    Fault(
        network.selectors_meet_somebody,
        "NetworkPolicy train-peers: no pod answers to",
        put(
            lambda p: ingress(p, "train-peers")["from"][0]["podSelector"]["matchLabels"],
            **{"app.kubernetes.io/component": "trainer"},
        ),
        HOSTS,
    ),
    Fault(
        network.what_is_let_out_is_let_in,
        "Job jaxport-train: Job jaxport-train is let out to it",
        put(
            lambda p: ingress(p, "train-peers")["from"][0]["podSelector"]["matchLabels"],
            **{"app.kubernetes.io/component": "export"},
        ),
        HOSTS,
    ),
    Fault(
        network.what_is_let_out_is_let_in,
        "JobSet jaxport-train: JobSet jaxport-train is let out to it",
        put(lambda p: ingress(p, "train-peers"), ports=[{"protocol": "TCP", "port": 8476}]),
        JOBSET,
    ),
    Fault(
        network.what_is_let_out_is_let_in,
        "a pod that is no stage is let out to it at ('TCP', 8501)",
        put(lambda p: p.spec("NetworkPolicy", "clients")["egress"][0]["ports"][0], port=8501),
    ),
    Fault(
        network.clients_alone_call_servers,
        "a pod that is no stage may not call it at 8500",
        put(
            lambda p: p.spec("NetworkPolicy", "clients")["podSelector"]["matchExpressions"][0], operator="In"
        ),
    ),
    Fault(
        network.clients_alone_call_servers,
        "Job jaxport-warm may call it",
        lambda p: p.spec("NetworkPolicy", "clients")["podSelector"]["matchExpressions"][0]["values"].remove(
            "warm"
        ),
    ),
    Fault(
        network.clients_alone_call_servers,
        "of docs/operations.md may not",
        put(
            lambda p: ingress(p, "serve")["from"][1]["namespaceSelector"],
            matchLabels={"jaxport-client": "true"},
        ),
    ),
    Fault(
        network.namespaces_are_those_of_the_documents,
        "{'jaxport-clients': 'yes'}",
        put(
            lambda p: ingress(p, "serve")["from"][1]["namespaceSelector"]["matchLabels"],
            **{"jaxport-clients": "yes"},
        ),
    ),
    Fault(
        network.namespaces_are_those_of_the_documents,
        "'monitorng'",
        lambda p: ingress(p, "serve", 1)["from"][0]["namespaceSelector"]["matchExpressions"][0][
            "values"
        ].__setitem__(0, "monitorng"),
    ),
    Fault(
        network.namespaces_are_those_of_the_documents,
        "NetworkPolicy train-metrics: namespaceSelector",
        lambda p: ingress(p, "train-metrics")["from"][0]["namespaceSelector"]["matchExpressions"][0][
            "values"
        ].pop(),
        MANAGED,
    ),
    Fault(
        network.namespaces_are_those_of_the_documents,
        "169.254.20.0/32",
        lambda p: p.spec("NetworkPolicy", "names")["egress"][0]["to"][1]["ipBlock"].update(
            cidr="169.254.20.0/32"
        ),
    ),
    Fault(
        network.scraped_ports_are_there,
        "PodMonitoring jaxport-serve: port 'htpp'",
        put(lambda p: p.spec("PodMonitoring", "jaxport-serve")["endpoints"][0], port="htpp"),
        SCRAPED,
    ),
    Fault(
        network.scraped_ports_are_there,
        "path /stats",
        put(lambda p: p.spec("PodMonitoring", "jaxport-serve")["endpoints"][1], path="/stats"),
        SCRAPED,
    ),
    Fault(
        network.scraped_ports_are_there,
        "PodMonitoring jaxport-train: port 'metric'",
        put(lambda p: p.spec("PodMonitoring", "jaxport-train")["endpoints"][0], port="metric"),
        MANAGED,
    ),
    Fault(
        network.scraped_ports_are_there,
        "ServiceMonitor jaxport-serve: port 'front': Deployment jaxport-serve has no such port",
        put(lambda p: p.spec("Service", "jaxport-metrics")["ports"][1], targetPort=8503),
        MONITOR,
    ),
    Fault(
        network.scraped_ports_are_there,
        "lets collectors in at 8502",
        lambda p: ingress(p, "serve", 1)["ports"].pop(1),
        MONITOR,
    ),
)
