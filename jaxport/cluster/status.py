"""One row for each Job, and one for the servers: how they fare."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from jaxport.cluster import outcome
from jaxport.cluster.api import Api, Object, namespaced, pods
from jaxport.cluster.errors import ClientError
from jaxport.cluster.lookup import listed
from jaxport.cluster.progress import Progress, read_progress
from jaxport.cluster.stages import COMPONENT, SERVE, container_of, run_of, stage_of

TAIL = "40"


@dataclass(frozen=True)
class Row:
    """pods, wanted: that run (or, of servers, are ready), and as many as there should be. failed: pods that count against
    the Job; preempted: pods that do not. detail: why it waits, or how it failed. age: seconds."""

    stage: str
    name: str
    run: str
    phase: str
    detail: str
    pods: int
    wanted: int
    failed: int
    preempted: int
    step: int | None
    steps: int | None
    metric: str
    value: float | None
    age: int


def rows(api: Api, namespace: str) -> list[Row]:
    """Of a namespace, in the order of the stages. Raises what Api does; a log that cannot be read tells nothing."""
    every, _ = api.listing(pods(namespace), labelSelector=COMPONENT)
    found = [_job(api, each, every) for each in listed(api, namespace)]
    servers, _ = api.listing(
        namespaced(namespace, "deployments", "apps/v1"), labelSelector=f"{COMPONENT}={SERVE}"
    )
    return found + [_server(each, every) for each in servers]


def _job(api: Api, job: Object, every: Sequence[Object]) -> Row:
    own = sorted(
        (each for each in every if outcome.job_uid_of(each) == outcome.uid_of(job)),
        key=lambda each: each["metadata"]["creationTimestamp"],
    )
    container, status = container_of(job)["name"], job.get("status") or {}
    stopped = [each for each in own if outcome.preempted(each, container) and outcome.finished(each)]
    running = [each for each in own if outcome.phase_of(each) == "Running"]
    verdict = outcome.verdict(job, own)
    phase = _phase(job, verdict, running, stopped)
    lines = _tail(api, own, container) if stage_of(job) == "train" or phase == "Failed" else []
    progress = read_progress(lines) if stage_of(job) == "train" else Progress()
    return Row(
        stage=stage_of(job),
        name=job["metadata"]["name"],
        run=run_of(job),
        phase=phase,
        detail=_detail(verdict, own, running, lines),
        pods=len(running),
        wanted=job["spec"].get("parallelism") or 1,
        failed=status.get("failed") or 0,
        preempted=len(stopped),
        step=progress.step,
        steps=progress.steps,
        metric=progress.metric,
        value=progress.value,
        age=_age(job),
    )


def _phase(
    job: Object, verdict: outcome.Verdict | None, running: Sequence[Object], stopped: Sequence[Object]
) -> str:
    if "deletionTimestamp" in job["metadata"]:
        return "Stopping"
    if verdict is not None:
        return "Failed" if verdict.code else "Complete"
    if job["spec"].get("suspend"):
        return "Suspended"
    return "Running" if running else "Preempted" if stopped else "Waiting"


def _detail(
    verdict: outcome.Verdict | None, own: Sequence[Object], running: Sequence[Object], lines: Sequence[str]
) -> str:
    if verdict is not None:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{verdict.text}: {last}".rstrip(": ") if verdict.code else ""
    waits = (outcome.waits_for(each) for each in own if not outcome.finished(each))
    return "" if running else next(filter(None, waits), "")


def _tail(api: Api, own: Sequence[Object], container: str) -> list[str]:
    """The last lines of the first process's newest pod that has any."""
    for each in reversed(own):
        if outcome.index_of(each) == "0" and outcome.state_of(each, container).keys() & {
            "running",
            "terminated",
        }:
            meta = each["metadata"]
            try:
                path = f"{pods(meta['namespace'], meta['name'])}/log"
                return api.text(path, container=container, tailLines=TAIL).splitlines()
            except ClientError:
                return []
    return []


def _server(each: Object, every: Sequence[Object]) -> Row:
    status = each.get("status") or {}
    ready, wanted = status.get("readyReplicas") or 0, each["spec"].get("replicas", 1)
    labels = each["spec"]["selector"].get("matchLabels") or {}
    own = [pod for pod in every if labels.items() <= (pod["metadata"].get("labels") or {}).items()]
    waits = next(filter(None, map(outcome.waits_for, own)), "")
    return Row(
        stage=SERVE,
        name=each["metadata"]["name"],
        run="",
        phase="Ready" if ready and ready >= wanted else "Waiting" if not ready else "Partly ready",
        detail="" if ready >= wanted else waits,
        pods=ready,
        wanted=wanted,
        failed=sum(_restarts(pod) for pod in own),
        preempted=0,
        step=None,
        steps=None,
        metric="",
        value=None,
        age=_age(each),
    )


def _restarts(pod: Object) -> int:
    return sum(
        each.get("restartCount", 0) for each in (pod.get("status") or {}).get("containerStatuses") or []
    )


def _age(each: Object) -> int:
    made = datetime.datetime.fromisoformat(each["metadata"]["creationTimestamp"])
    # The clocks of two machines.
    return max(0, int((datetime.datetime.now(datetime.UTC) - made).total_seconds()))
