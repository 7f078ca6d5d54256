"""A fault: what is planted into a copy of an output, who has to find it, and with which words."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tests.deploy.objects import Object, outputs
from tests.deploy.policies import Policy

PLAIN, CPU, HOSTS, METRICS = "deploy/", "overlays/cpu", "overlays/multi-host", "overlays/queue-time"
KEDA, ROUTE, MONITOR, SCRAPED, MANAGED, JOBSET, KUEUE = (
    f"gke-l4 with optional/{name}"
    for name in (
        "keda",
        "gateway",
        "service-monitor",
        "pod-monitoring",
        "managed-monitoring",
        "jobset",
        "kueue",
    )
)
L4, TLS, MTLS = "overlays/gke-l4", "gke-l4 with components/tls", "gke-l4 with components/mtls"


class Planted:
    """A copy of an output, and where in it things are."""

    def __init__(self, output: str) -> None:
        self.objects: list[Object] = deepcopy(outputs()[output])

    def of(self, kind: str, name: str) -> Any:
        return next(o for o in self.objects if o["kind"] == kind and o["metadata"]["name"] == name)

    def spec(self, kind: str, name: str) -> Any:
        return self.of(kind, name)["spec"]

    @property
    def serve(self) -> Any:
        """The server's pod."""
        return self.spec("Deployment", "jaxport-serve")["template"]["spec"]

    @property
    def server(self) -> Any:
        return self.serve["containers"][0]

    @property
    def envoy(self) -> Any:
        return self.serve["initContainers"][0]

    @property
    def job(self) -> Any:
        return self.spec("Job", "jaxport-train")

    @property
    def train(self) -> Any:
        """The training's pod."""
        return self.job["template"]["spec"]

    @property
    def trainer(self) -> Any:
        return self.train["containers"][0]

    @property
    def exporter(self) -> Any:
        return self.spec("Job", "jaxport-export")["template"]["spec"]["containers"][0]

    @property
    def warm(self) -> Any:
        """The warm Job's pod."""
        return self.spec("Job", "jaxport-warm")["template"]["spec"]

    @property
    def warmer(self) -> Any:
        return self.warm["containers"][0]

    @property
    def replicated(self) -> Any:
        """The Job in the JobSet."""
        return self.spec("JobSet", "jaxport-train")["replicatedJobs"][0]["template"]["spec"]

    @property
    def processes(self) -> Any:
        """The JobSet's pods."""
        return self.replicated["template"]["spec"]

    def drop(self, kind: str, name: str) -> None:
        self.objects.remove(self.of(kind, name))

    def argument(self, container: Any, flag: str, value: str) -> None:
        container["args"][container["args"].index(flag) + 1] = value


@dataclass(frozen=True)
class Fault:
    """What is planted, who finds it, and with which words."""

    policy: Policy
    words: str
    plant: Callable[[Planted], object]
    output: str = PLAIN


def put(where: Callable[[Planted], Any], **values: object) -> Callable[[Planted], object]:
    return lambda planted: where(planted).update(values)


def cut(where: Callable[[Planted], Any], key: Any) -> Callable[[Planted], object]:
    return lambda planted: where(planted).pop(key)


def replaced(where: Callable[[Planted], Any], key: str, old: str, new: str) -> Callable[[Planted], object]:
    def plant(planted: Planted) -> None:
        found = where(planted)
        assert old in found[key]
        found[key] = found[key].replace(old, new)

    return plant
