"""What every output of deploy/ has to keep: each policy is a function of all its objects that yields what breaks it."""

from collections.abc import Callable, Iterator

from tests.deploy.objects import Objects
from tests.deploy.policies import (
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

Policy = Callable[[Objects], Iterator[str]]

POLICIES: tuple[Policy, ...] = (
    *pods.POLICIES,
    *commands.POLICIES,
    *workloads.POLICIES,
    *server.POLICIES,
    *stages.POLICIES,
    *front.POLICIES,
    *network.POLICIES,
    *platform.POLICIES,
    *references.POLICIES,
    *admission.POLICIES,
)
