"""The Job that a person means by a stage and perhaps a run."""

from jaxport.cluster.api import Api, Object, jobs, pods
from jaxport.cluster.errors import NotThere, UsageError
from jaxport.cluster.outcome import finished, index_of, job_uid_of, uid_of
from jaxport.cluster.stages import ALL, COMPONENT, INSTANCE, STAGES, jobs_of, named, run_of


def listed(api: Api, namespace: str) -> list[Object]:
    """Every Job of a stage, in the order of the stages. A list's items do not say what they are: here they do."""
    items, _ = api.listing(jobs(namespace), labelSelector=STAGES)
    return jobs_of([{"apiVersion": "batch/v1", "kind": "Job"} | each for each in items])


def find_jobs(api: Api, namespace: str, stage: str, run: str | None) -> list[Object]:
    """One Job; with stage "all" those of every stage, of `run` if it is given.

    Raises:
        NotThere: there is none. UsageError: there are several, and `run` does not say which.
    """
    there = listed(api, namespace)
    found = [each for each in jobs_of(there, stage) if run is None or run in (run_of(each), _suffix(each))]
    if not found:
        which = f"{stage} Job" + (f" of the run {run}" if run else "") if stage != ALL else "Job"
        known = ", ".join(map(_described, there)) or "none"
        raise NotThere(f"no {which} in namespace {namespace}; there: {known}")
    if len(found) > 1 and stage != ALL:
        raise UsageError(
            f"{len(found)} {stage} Jobs are there: {', '.join(map(_described, found))}; say which by --run"
        )
    return found


def _suffix(job: Object) -> str:
    return (job["metadata"].get("labels") or {}).get(INSTANCE, "")


def _described(job: Object) -> str:
    run = run_of(job)
    return named(job) + (f" (run {run})" if run else "")


def pods_of(api: Api, job: Object) -> list[Object]:
    """A Job's pods, oldest first."""
    selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"
    items, _ = api.listing(pods(job["metadata"]["namespace"]), labelSelector=selector)
    own = [each for each in items if job_uid_of(each) == uid_of(job)]
    return sorted(own, key=lambda each: each["metadata"]["creationTimestamp"])


def latest(found: list[Object]) -> list[Object]:
    """Of each completion index the pod that came last."""
    return list({index_of(each): each for each in found}.values())


def servers(api: Api, namespace: str) -> list[Object]:
    """The pods of the server that have not ended."""
    items, _ = api.listing(pods(namespace), labelSelector=f"{COMPONENT}=serve")
    return [each for each in items if not finished(each)]
