"""What is known of a Job that is followed, and of its pods."""

import threading
import time
from dataclasses import dataclass, field

from jaxport.cluster import outcome
from jaxport.cluster.api import Object
from jaxport.cluster.stages import container_of, stage_of


@dataclass(frozen=True)
class FollowSettings:
    """Seconds. patience: without an answer of the API. settle: after the end of a Job, without another line of its logs.
    unseen: after its end, for what its pods did to be told. quiet: without a pod, before the Job's events are asked why.
    tail: lines of a log that was there before; None: all."""

    patience: float = 60.0
    settle: float = 10.0
    unseen: float = 2.0
    quiet: float = 5.0
    tail: int | None = None


@dataclass
class FollowedPod:
    """thread: reads its log. read: to the end. last: its last line that is not empty. waits, told: what people know."""

    each: Object
    gone: bool = False
    thread: threading.Thread | None = None
    read: bool = False
    last: str = ""
    waits: str = ""
    told: bool = False

    @property
    def name(self) -> str:
        return self.each["metadata"]["name"]

    @property
    def index(self) -> str:
        return outcome.index_of(self.each)

    @property
    def made(self) -> str:
        return self.each["metadata"]["creationTimestamp"]


@dataclass
class FollowedJob:
    """over_at: when it was seen to be over; moved_at: when its last line came (time.monotonic()). done: nothing more is to
    come of it."""

    each: Object
    pods: dict[str, FollowedPod] = field(default_factory=dict)
    gone: bool = False
    over_at: float | None = None
    moved_at: float = 0.0
    asked_at: float = field(default_factory=time.monotonic)
    said: set[str] = field(default_factory=set)
    verdict: outcome.Verdict | None = None
    done: bool = False
    stage: str = field(init=False)
    container: str = field(init=False)

    def __post_init__(self) -> None:
        # Labels may be changed while it runs; what it is may not.
        self.stage, self.container = stage_of(self.each), container_of(self.each)["name"]

    @property
    def several(self) -> bool:
        """Processes, whose lines have to be told apart."""
        return (self.each["spec"].get("completions") or 1) > 1

    def judged(self) -> outcome.Verdict | None:
        """None while it is not over. Of one that was deleted: its work was stopped, not lost."""
        found = outcome.verdict(self.each, [pod.each for pod in self.pods.values()])
        if found is None and self.gone:
            return outcome.Verdict(
                outcome.RESUMABLE, "deleted while it ran; what it had saved is on the volume"
            )
        return found

    def ended(self, pod: FollowedPod) -> bool:
        """Its log grows no more."""
        return pod.gone or outcome.finished(pod.each) or outcome.ended(pod.each, self.container) is not None

    def has_log(self, pod: FollowedPod) -> bool:
        return bool(outcome.state_of(pod.each, self.container).keys() & {"running", "terminated"})

    def passed(self, pod: FollowedPod) -> bool:
        """It was over, and another had followed it, before anybody looked."""
        return outcome.finished(pod.each) and any(
            other.made > pod.made and other.index == pod.index for other in self.pods.values()
        )

    def settled(self, settings: FollowSettings) -> bool:
        """It is over, and nothing more is to be read, or has come for long enough."""
        if self.over_at is None:
            return False
        grace = self.each["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
        stopping = any(
            "deletionTimestamp" in pod.each["metadata"] and not pod.gone for pod in self.pods.values()
        )
        now = time.monotonic()
        if now - max(self.over_at, self.moved_at) > settings.settle + grace * stopping:
            return True
        # The Job and its pods are told of separately: the end of the one may come before that of the other.
        if not any(outcome.ended(pod.each, self.container) for pod in self.pods.values()):
            return now - self.over_at > settings.unseen
        return all(
            (pod.gone or outcome.finished(pod.each)) and (pod.read or not self.has_log(pod))
            for pod in self.pods.values()
        )
