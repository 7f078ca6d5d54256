"""Faults planted into the objects of deploy/, by the file of the policy that is there to find them."""

from tests.deploy.faults import (
    admission,
    commands,
    front,
    network,
    platform,
    pods,
    references,
    server,
    stages,
    workloads,
)

FAULTS = (
    *pods.FAULTS,
    *commands.FAULTS,
    *workloads.FAULTS,
    *server.FAULTS,
    *stages.FAULTS,
    *front.FAULTS,
    *network.FAULTS,
    *platform.FAULTS,
    *references.FAULTS,
    *admission.FAULTS,
)
