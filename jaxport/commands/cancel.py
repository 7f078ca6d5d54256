"""jaxport cancel train|export|warm|all [--run NAME] [--wait]"""

import argparse

from jaxport.cluster.api import jobs
from jaxport.cluster.apply import await_gone, over
from jaxport.cluster.errors import NotThere
from jaxport.cluster.flags import add_cluster_flags, note, open_api
from jaxport.cluster.lookup import find_jobs
from jaxport.cluster.outcome import uid_of
from jaxport.cluster.stages import ALL, JOBS, named, run_of, stage_of

DESCRIPTION = """\
Deletes the Job of a stage, or of all. Its pods get SIGTERM and their time to end: a training saves, and goes on from there when
it is submitted again. Nothing on the volume is touched."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    flag = parser.add_argument
    flag("stage", choices=[*JOBS, ALL])
    flag("--run", metavar="NAME", help="which, where there are several")
    flag("--wait", action="store_true", help="until its pods are gone")
    add_cluster_flags(parser)


def run(options: argparse.Namespace) -> int:
    api = open_api(options)
    found = find_jobs(api, options.namespace, options.stage, options.run)
    for each in found:
        try:
            api.delete(jobs(options.namespace, each["metadata"]["name"]), uid_of(each))
        except NotThere:
            note(f"{named(each)} was gone already")
            continue
        print(
            f"{named(each)} {'deleted' if over(each) else 'is being stopped'}; {_stays(stage_of(each), run_of(each))}"
        )
    if options.wait:
        for each in found:
            await_gone(api, each, note)
    return 0


def _stays(stage: str, run: str) -> str:
    if stage == "train":
        return f"runs/{run or '...'} stays on the volume with its checkpoints; submitted again as it was, it goes on from the last"
    if stage == "export":
        return "bundles that are written stay on the volume; one that was under way was not there yet"
    return "what is compiled stays on the volume"
