"""How a Job and its pods fare, read from their status; and the exit code of a Job that is over."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxport.cluster.api import Object
from jaxport.cluster.stages import INDEX, container_of, named

RESUMABLE = 75
# Told to stop before the command had begun: nothing is lost either.
STOPPED = (RESUMABLE, 143)
OURS = (2, 3, 4)
# What a pod waits for without anything being wrong.
_USUAL = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True)
class Ended:
    """A container that has run. at: RFC 3339. reason: Completed, Error, OOMKilled."""

    code: int
    reason: str
    at: str


@dataclass(frozen=True)
class Verdict:
    """Of a Job that is over. code: 0, 2, 3, 4 or 75. text: why, in a few words. pod: the one whose end decided."""

    code: int
    text: str
    pod: str = ""


def condition(each: Object, kind: str) -> Mapping[str, Any] | None:
    """A condition that holds."""
    for found in (each.get("status") or {}).get("conditions") or []:
        if found["type"] == kind and found["status"] == "True":
            return found
    return None


def uid_of(each: Object) -> str:
    return each["metadata"]["uid"]


def job_uid_of(pod: Object) -> str:
    """Of the Job that a pod belongs to."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((each["uid"] for each in owners if each["kind"] == "Job"), "")


def index_of(pod: Object) -> str:
    """Its completion index."""
    meta = pod["metadata"]
    return (meta.get("annotations") or {}).get(INDEX) or (meta.get("labels") or {}).get(INDEX) or "0"


def state_of(pod: Object, container: str) -> Mapping[str, Any]:
    """{"running": ...}, {"waiting": ...}, {"terminated": ...} or nothing."""
    for each in (pod.get("status") or {}).get("containerStatuses") or []:
        if each["name"] == container:
            return each.get("state") or {}
    return {}


def ended(pod: Object, container: str) -> Ended | None:
    found = state_of(pod, container).get("terminated")
    return found and Ended(found["exitCode"], found.get("reason", ""), found.get("finishedAt") or "")


def phase_of(pod: Object) -> str:
    return (pod.get("status") or {}).get("phase", "Pending")


def finished(pod: Object) -> bool:
    return phase_of(pod) in ("Succeeded", "Failed")


def preempted(pod: Object, container: str) -> bool:
    """It was stopped from outside, and the Job does not hold it against the run."""
    if phase_of(pod) == "Succeeded":
        return False
    end = ended(pod, container)
    return condition(pod, "DisruptionTarget") is not None or (end is not None and end.code in STOPPED)


def waits_for(pod: Object) -> str:
    """Why a pod does not run; nothing when it does, or is about to."""
    for found in (pod.get("status") or {}).get("conditions") or []:
        if found["type"] == "PodScheduled" and found["status"] == "False":
            return found.get("message") or found.get("reason") or "not scheduled"
    statuses = pod.get("status") or {}
    for each in (statuses.get("initContainerStatuses") or []) + (statuses.get("containerStatuses") or []):
        waiting = (each.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, *_USUAL):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return ""


def verdict(job: Object, pods: Iterable[Object]) -> Verdict | None:
    """Of a Job that is over, with all its pods that were seen; None while it is not.

    0: Complete. 2, 3, 4: as its container ended. 75: its time was up, and the work goes on where it stopped. 3: any other
    code; 4: no container ever ran.
    """
    if condition(job, "Complete"):
        return Verdict(0, "complete")
    failed = condition(job, "Failed")
    if failed is None:
        return None
    container, pods = container_of(job)["name"], list(pods)
    ends = [(end, pod) for pod in pods if (end := ended(pod, container)) is not None and end.code != 0]
    ends.sort(key=lambda each: each[0].at)
    reason = failed.get("reason", "Failed")
    if reason == "DeadlineExceeded":
        return _out_of_time(job, ends, pods)
    # A process that ends takes its peers along, with 75: what began it is the one that did not.
    own = [each for each in ends if each[0].code not in STOPPED] or ends
    if not own:
        return Verdict(4, f"{reason}, and no container ran: {failed.get('message', '')}".rstrip(": "))
    end, pod = own[-1]
    said = f"exit code {end.code}" + (f", {end.reason}" if end.reason not in ("Error", "") else "")
    code = end.code if end.code in OURS else RESUMABLE if end.code in STOPPED else 3
    return Verdict(code, f"{reason}, {said}", pod["metadata"]["name"])


def _out_of_time(job: Object, ends: list[tuple[Ended, Object]], pods: list[Object]) -> Verdict:
    limit = f"its {job['spec'].get('activeDeadlineSeconds')} s (activeDeadlineSeconds) were up"
    if not ends:
        container, status = container_of(job)["name"], job.get("status") or {}
        # Of pods that are gone the Job knows no more than that there were some.
        began = any(state_of(pod, container).keys() & {"running", "terminated"} for pod in pods)
        if began or (not pods and status.get("failed")):
            return Verdict(RESUMABLE, limit)
        return Verdict(4, f"{limit}, and no container had run")
    end, pod = ends[-1]
    code = end.code if end.code in OURS else RESUMABLE
    return Verdict(code, f"{limit}, exit code {end.code}", pod["metadata"]["name"])


def failed_as(job: Object, found: Verdict, last_line: str) -> str:
    """The one line about a Job that is over and not complete."""
    said = f": {last_line}" if last_line else ""
    hint = "; --replace starts it again where it stopped" if found.code == RESUMABLE else ""
    return f"{named(job)} failed ({found.text}){said}{hint}"
