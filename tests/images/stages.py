"""What the stages leave behind, for the tests that follow."""

import time
from dataclasses import dataclass

from tests.images.cluster import Cluster
from tests.images.pods import Pod

STAGE_SECONDS = 300


@dataclass(frozen=True)
class Early:
    """What was started before there was anything to do."""

    export: Pod
    warm: Pod
    serve: Pod
    not_ready: str  # what its readiness probe said while there was no bundle


@dataclass(frozen=True)
class Ended:
    code: int
    log: str
    seconds: float


@dataclass(frozen=True)
class Trained:
    """Three pods of the Job, one after another."""

    stopped: Ended
    resumed: Ended
    again: Ended


def train_three_times(cluster: Cluster) -> Trained:
    """The first is told to stop once it has saved something."""
    first, begun = cluster.start("Job", "jaxport-train"), time.monotonic()
    first_save = cluster.volume / "runs" / "tiny" / "checkpoints" / "10"
    while not first_save.exists():
        first.container("train").alive()
        assert time.monotonic() - begun < STAGE_SECONDS, f"nothing saved:\n{first.log()}"
        time.sleep(0.05)
    code = first.stop()["train"]
    return Trained(
        Ended(code, first.log(), time.monotonic() - begun), to_its_end(cluster), to_its_end(cluster)
    )


def to_its_end(cluster: Cluster) -> Ended:
    begun, pod = time.monotonic(), cluster.start("Job", "jaxport-train")
    return Ended(pod.wait(STAGE_SECONDS), pod.log(), time.monotonic() - begun)
