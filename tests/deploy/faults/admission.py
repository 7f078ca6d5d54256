"""Faults that schemas let pass and an API server does not."""

from tests.deploy.faults.planted import Fault, put
from tests.deploy.policies import admission

FAULTS = (
    Fault(
        admission.lists_have_no_twins, "ports: 8501", put(lambda p: p.envoy["ports"][0], containerPort=8501)
    ),
    Fault(
        admission.lists_have_no_twins,
        "JAX_PLATFORMS",
        put(lambda p: p.trainer["env"][1], name="JAX_PLATFORMS"),
    ),
    Fault(admission.lists_have_no_twins, "volumes: tmp", put(lambda p: p.train["volumes"][2], name="tmp")),
    Fault(
        admission.names_are_short_enough,
        "label x",
        put(lambda p: p.of("Service", "jaxport")["metadata"]["labels"], x="a b"),
    ),
    Fault(
        admission.names_are_short_enough,
        "port name",
        put(lambda p: p.envoy["ports"][0], name="grpc-of-the-front"),
    ),
    Fault(
        admission.exit_codes_are_in_order,
        "[3, 2]",
        lambda p: p.job["podFailurePolicy"]["rules"][2]["onExitCodes"].update(values=[3, 2]),
    ),
    Fault(
        admission.exit_codes_are_in_order,
        "or conditions",
        put(lambda p: p.job["podFailurePolicy"]["rules"][0], onExitCodes={}),
    ),
    Fault(
        admission.bounds_are_in_order,
        "minReplicas",
        put(lambda p: p.spec("HorizontalPodAutoscaler", "jaxport-serve"), minReplicas=9),
    ),
    Fault(
        admission.bounds_are_in_order,
        "nothing could roll",
        lambda p: p.spec("Deployment", "jaxport-serve")["strategy"]["rollingUpdate"].update(maxSurge=0),
    ),
    Fault(
        admission.bounds_are_in_order,
        "needs one of",
        put(lambda p: p.spec("PodDisruptionBudget", "jaxport-serve"), minAvailable=1),
    ),
)
