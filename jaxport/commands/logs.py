"""jaxport logs train|export|warm|serve [--run NAME] [--follow] [--tail N]"""

import argparse

from jaxport.cluster.api import Api, Object, pods
from jaxport.cluster.apply import over
from jaxport.cluster.errors import NotThere, UsageError
from jaxport.cluster.flags import add_cluster_flags, note, open_api
from jaxport.cluster.following import add_follow_flags, follow
from jaxport.cluster.lookup import find_jobs, latest, pods_of, servers
from jaxport.cluster.outcome import condition, index_of, state_of, waits_for
from jaxport.cluster.stages import JOBS, SERVE, container_of, named

DESCRIPTION = """\
Prints the log of a stage: of a Job's newest pods, or of every server. With --follow as it grows, from pod to pod where one
is preempted, until the Job is over; it then ends as `jaxport submit` does."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    flag = parser.add_argument
    flag("stage", choices=[*JOBS, SERVE])
    flag("--run", metavar="NAME", help="which, where there are several")
    flag("--tail", type=_lines, metavar="N", help="the last lines alone (default: all)")
    add_follow_flags(parser, "no")
    add_cluster_flags(parser)


def run(options: argparse.Namespace) -> int:
    api = open_api(options)
    if options.stage == SERVE:
        return _servers(api, options)
    (job,) = find_jobs(api, options.namespace, options.stage, options.run)
    if options.follow:
        return follow(api, [job], options)
    found = latest(pods_of(api, job))
    if not found:
        note(f"{named(job)}: {_without_pods(job)}")
    for each in found:
        _print(
            api,
            each,
            container_of(job)["name"],
            f"[{index_of(each)}] " if len(found) > 1 else "",
            options.tail,
        )
    return 0


def _without_pods(job: Object) -> str:
    failed = condition(job, "Failed")
    if failed is not None and failed.get("reason") == "DeadlineExceeded":
        return (
            "no log: its time (activeDeadlineSeconds) was up, and Kubernetes has deleted its pods with their logs; "
            "what it had saved is on the volume, jaxport submit --replace goes on with it"
        )
    if over(job):
        return "no log: it is over, and its pods are gone"
    return "it is suspended: a queue holds it back" if job["spec"].get("suspend") else "no pod yet"


def _servers(api: Api, options: argparse.Namespace) -> int:
    if options.follow:
        raise UsageError(
            f"logs serve --follow: servers have no end; kubectl -n {options.namespace} logs -f -c serve "
            "-l app.kubernetes.io/component=serve"
        )
    found = servers(api, options.namespace)
    if not found:
        raise NotThere(f"no server in namespace {options.namespace}")
    for each in found:
        _print(api, each, SERVE, f"[{each['metadata']['name']}] " if len(found) > 1 else "", options.tail)
    return 0


def _print(api: Api, pod: Object, container: str, prefix: str, tail: int | None) -> None:
    meta = pod["metadata"]
    if not state_of(pod, container).keys() & {"running", "terminated"}:
        note(f"{meta['name']} waits: {waits_for(pod) or 'it is being started'}")
        return
    query = {"container": container} | ({} if tail is None else {"tailLines": str(tail)})
    for line in api.lines(f"{pods(meta['namespace'], meta['name'])}/log", query, api.limits.silence):
        print(f"{prefix}{line}")


def _lines(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of lines; needed: 0 or more, at most 9 digits"
        )
    return int(text)
