"""Faults in names: what they point at is not there, or not what they take it for."""

from tests.deploy.faults.planted import HOSTS, KEDA, METRICS, MONITOR, ROUTE, Fault, cut, put, replaced
from tests.deploy.policies import references

FAULTS = (
    Fault(
        references.names_and_labels_are_right,
        "no DNS name",
        put(lambda p: p.of("Service", "jaxport")["metadata"], name="Jaxport"),
    ),
    Fault(
        references.names_and_labels_are_right,
        "no label",
        cut(lambda p: p.of("Service", "jaxport")["metadata"], "labels"),
    ),
    Fault(
        references.names_and_labels_are_right,
        "there twice",
        lambda p: p.objects.append(p.of("Service", "jaxport")),
    ),
    Fault(references.what_pods_name_is_there, "no ConfigMap", lambda p: p.drop("ConfigMap", "jaxport-envoy")),
    Fault(
        references.what_pods_name_is_there,
        "no PersistentVolumeClaim",
        put(lambda p: p.train["volumes"][0]["persistentVolumeClaim"], claimName="work"),
    ),
    Fault(
        references.what_pods_name_is_there,
        "no ServiceAccount",
        put(lambda p: p.train, serviceAccountName="jaxport-trains"),
    ),
    Fault(
        references.what_pods_name_is_there,
        "no volume shmem",
        put(lambda p: p.trainer["volumeMounts"][2], name="shmem"),
    ),
    Fault(
        references.what_pods_name_is_there,
        "no PriorityClass",
        put(lambda p: p.serve, priorityClassName="high"),
    ),
    Fault(
        references.secrets_are_optional_where_none_is_made,
        "jaxport-tls",
        cut(lambda p: p.serve["volumes"][-1]["secret"], "optional"),
    ),
    Fault(
        references.classes_of_storage_are_there,
        "no StorageClass",
        lambda p: p.drop("StorageClass", "jaxport-filestore"),
        HOSTS,
    ),
    Fault(
        references.services_reach_pods,
        "selects no pod",
        put(lambda p: p.spec("Service", "jaxport")["selector"], **{"app.kubernetes.io/component": "server"}),
    ),
    Fault(
        references.services_reach_pods,
        "no such port",
        put(lambda p: p.spec("Service", "jaxport")["ports"][0], targetPort=8505),
    ),
    Fault(
        references.services_reach_pods,
        "names a sidecar's",
        put(lambda p: p.spec("Service", "jaxport")["ports"][0], targetPort="grpc"),
    ),
    Fault(
        references.services_reach_pods,
        "open to the outside",
        put(lambda p: p.spec("Service", "jaxport"), type="LoadBalancer"),
    ),
    Fault(
        references.selectors_match,
        "PodDisruptionBudget",
        put(lambda p: p.spec("PodDisruptionBudget", "jaxport-serve")["selector"]["matchLabels"], app="x"),
    ),
    Fault(
        references.selectors_match,
        "NetworkPolicy serve",
        put(lambda p: p.spec("NetworkPolicy", "serve")["podSelector"]["matchLabels"], app="x"),
    ),
    Fault(
        references.selectors_match,
        "ServiceMonitor",
        put(lambda p: p.spec("ServiceMonitor", "jaxport-serve")["endpoints"][0], port="metrics"),
        MONITOR,
    ),
    Fault(
        references.nothing_is_open_that_is_not_named,
        "denies by default",
        lambda p: p.drop("NetworkPolicy", "default-deny"),
    ),
    Fault(
        references.nothing_is_open_that_is_not_named,
        "lets everybody in",
        cut(lambda p: p.spec("NetworkPolicy", "serve")["ingress"][0], "from"),
    ),
    Fault(
        references.nothing_is_open_that_is_not_named,
        "opens 8600",
        put(lambda p: p.spec("NetworkPolicy", "serve")["ingress"][0]["ports"][0], port=8600),
    ),
    Fault(
        references.names_can_be_asked,
        "('SCTP', 53)",
        put(lambda p: p.spec("NetworkPolicy", "names")["egress"][0]["ports"][0], protocol="SCTP"),
    ),
    Fault(
        references.names_can_be_asked,
        "('UDP', 54)",
        put(lambda p: p.spec("NetworkPolicy", "names")["egress"][0]["ports"][0], port=54),
    ),
    Fault(
        references.names_can_be_asked, "no NetworkPolicy lets all", lambda p: p.drop("NetworkPolicy", "names")
    ),
    Fault(
        references.served_ports_are_let_in,
        "at 8500",
        put(lambda p: p.spec("NetworkPolicy", "serve")["ingress"][0]["ports"][0], protocol="SCTP"),
    ),
    Fault(references.served_ports_are_let_in, "at 8500", lambda p: p.drop("NetworkPolicy", "serve")),
    Fault(
        references.served_ports_are_let_in, "at 8476", lambda p: p.drop("NetworkPolicy", "train-peers"), HOSTS
    ),
    Fault(
        references.scalers_and_routes_have_targets,
        "no Deployment",
        put(lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve")["scaleTargetRef"], name="jaxport"),
    ),
    Fault(
        references.scalers_and_routes_have_targets,
        "measures ['server']",
        lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve")["metrics"][0][
            "containerResource"
        ].update(container="server"),
    ),
    Fault(
        references.scalers_and_routes_have_targets,
        "ScaledObject",
        put(lambda p: p.spec("ScaledObject", "jaxport-serve")["scaleTargetRef"], name="jaxport"),
        KEDA,
    ),
    Fault(
        references.scalers_and_routes_have_targets,
        "no Service jaxport with port 85",
        lambda p: p.spec("GRPCRoute", "jaxport")["rules"][0]["backendRefs"][0].update(port=85),
        ROUTE,
    ),
    Fault(
        references.metrics_exist,
        "jaxport_queue_time",
        lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve")["metrics"][1]["pods"]["metric"].update(
            name="jaxport_queue_time"
        ),
        METRICS,
    ),
    Fault(
        references.metrics_exist,
        "jaxport_queue_secs_sum",
        replaced(
            lambda p: p.of("ConfigMap", "adapter")["data"],
            "config.yaml",
            "jaxport_queue_seconds_sum",
            "jaxport_queue_secs_sum",
        ),
        METRICS,
    ),
)
