"""Makes it so: what is there stays, what is missing is made, and a Job that would have to be another is refused."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxport.cluster.api import Api, Object, jobs, pods
from jaxport.cluster.difference import differences, recorded
from jaxport.cluster.errors import Forbidden, NotFit, NotThere, Taken, UsageError
from jaxport.cluster.stages import is_job, named, namespace_of

# Beyond what its pods are given to save.
SLACK_SECONDS = 60
# Between two looks, doubled up to the last.
FIRST_LOOK, LAST_LOOK = 0.1, 2.0


@dataclass(frozen=True)
class Applied:
    """One object. what: created, replaced, exists (a Job, unchanged), applied (something else). live: a Job as it is."""

    wanted: Object
    what: str
    live: Object | None = None


def apply(
    api: Api,
    objects: Iterable[Object],
    replace: bool,
    force: bool,
    say: Callable[[str], None],
) -> list[Applied]:
    """Brings the objects into being, in their order; `say` is told of each.

    replace: a Job that differs or is over is deleted and made anew. force: take over fields of others.

    Raises:
        UsageError: a Job differs, before anything is changed; a field belongs to somebody else. NotThere. Forbidden.
    """
    objects = list(objects)
    paths = [api.path_of(each) for each in objects]
    found = {path: _find(api, path) for each, path in zip(objects, paths, strict=True) if is_job(each)}
    if not replace:
        for each, path in zip(objects, paths, strict=True):
            _require_same(each, found.get(path))
    # The namespace of the stages, or of whatever there is.
    own = namespace_of(next(filter(is_job, objects), objects[0]))
    done: list[Applied] = []
    for each, path in zip(objects, paths, strict=True):
        if is_job(each):
            made = _job(api, path, each, found[path], replace, say)
        else:
            made = _other(api, path, each, force, say, f"/namespaces/{own}/" in path)
        say(f"{named(each)} {made.what}")
        done.append(made)
    return done


def _find(api: Api, path: str) -> Object | None:
    try:
        return api.get(path)
    except NotThere:
        return None


def _going(job: Object) -> bool:
    return "deletionTimestamp" in job["metadata"]


def _require_same(wanted: Object, there: Object | None) -> None:
    if there is None or _going(there):
        return
    found = differences(there, wanted)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UsageError(
            f"{named(wanted)} is there and differs: {found[0]}{more}; a Job cannot be changed: --replace deletes it "
            "and makes it anew (what is on the volume stays), --run NAME puts another beside it"
        )


def _job(
    api: Api, path: str, wanted: Object, there: Object | None, replace: bool, say: Callable[[str], None]
) -> Applied:
    what = "created"
    if there is not None and (_going(there) or (replace and (over(there) or differences(there, wanted)))):
        what = "created" if _going(there) else "replaced"
        if not _going(there):
            api.delete(path, there["metadata"]["uid"])
        await_gone(api, there, say)
        there = None
    if there is not None:
        return Applied(wanted, "exists", there)
    try:
        live = api.create(path.rpartition("/")[0], recorded(wanted))
    except Taken:
        # Somebody was faster.
        live = api.get(path)
        _require_same(wanted, live)
        return Applied(wanted, "exists", live)
    return Applied(wanted, what, live)


def over(job: Object) -> bool:
    """Complete or Failed."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def await_gone(api: Api, job: Object, say: Callable[[str], None]) -> None:
    """Waits until a Job that is being deleted is gone with its pods: a run has one writer.

    Raises:
        NotFit: they are still there after all the time that they had, and a minute.
    """
    namespace, uid = namespace_of(job), job["metadata"]["uid"]
    grace = job["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
    say(f"{named(job)}: its pods are being stopped; they have {grace} s to save")
    end, pause = time.monotonic() + grace + SLACK_SECONDS, FIRST_LOOK
    while True:
        there = _find(api, jobs(namespace, job["metadata"]["name"]))
        if there is None or there["metadata"]["uid"] != uid:
            selector = f"batch.kubernetes.io/controller-uid={uid}"
            if not api.listing(pods(namespace), labelSelector=selector)[0]:
                return
        if time.monotonic() > end:
            raise NotFit(
                f"{named(job)} is still there {grace + SLACK_SECONDS} s after it was told to go; look at its pods "
                "(a node that is lost keeps them), and do it again"
            )
        time.sleep(pause)
        pause = min(2 * pause, LAST_LOOK)


def _other(
    api: Api, path: str, wanted: Object, force: bool, say: Callable[[str], None], own: bool
) -> Applied:
    """own: of the stages' namespace."""
    try:
        return Applied(wanted, "created" if api.apply(path, wanted, force) else "applied")
    except Taken as error:
        raise UsageError(
            f"{named(wanted)}: {error}; take the field out of the manifests, or --force-conflicts takes it over"
        ) from error
    except Forbidden as error:
        # Whoever works in a namespace may seldom make one, or what is of the whole cluster.
        if own:
            raise
        say(f"{named(wanted)}: taken to be there, for an administrator applies it: {error}")
        return Applied(wanted, "left alone")
