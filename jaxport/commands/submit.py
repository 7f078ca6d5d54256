"""jaxport submit train|export|warm|all [--run NAME] [--preset NAME] [--manifests PATH]"""

import argparse
import sys

from jaxport.cluster.api import Object
from jaxport.cluster.apply import apply
from jaxport.cluster.changes import Changes, changed
from jaxport.cluster.errors import UsageError
from jaxport.cluster.flags import add_cluster_flags, note, open_api
from jaxport.cluster.following import add_follow_flags, back_to, follow
from jaxport.cluster.manifests import as_yaml, read_manifests
from jaxport.cluster.stages import ALL, JOBS, jobs_of, namespace_of, stage_of

DESCRIPTION = """\
Creates the Jobs of deploy/, or with `all` everything that deploy/ holds. What is there stays: an unchanged Job is
followed, finished or not; a changed one is refused unless --replace. Then it follows the logs until the Job is over, and
ends as that did: 0 complete; 2, 3 or 4 as its container; 3 for any other failure; 75 where its time was up. See
docs/launcher.md."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    flag = parser.add_argument
    flag("stage", choices=[*JOBS, ALL], help="the Job of one stage, or all that the manifests hold")
    flag(
        "--run",
        metavar="NAME",
        help="the run to train or export; another than the manifests' gets Jobs of its own",
    )
    flag("--preset", metavar="NAME", help="what to train")
    flag("--steps", metavar="N", help="planned steps of the training")
    flag(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the training; again for more",
    )
    flag("--registry", metavar="PREFIX", help="where the images are, in place of localhost/jaxport")
    flag("--tag", metavar="TAG", help="of the images")
    flag(
        "--manifests",
        metavar="PATH",
        help="a file, a folder or - for standard input, such as what kubectl kustomize prints (default: deploy/)",
    )
    flag("--replace", action="store_true", help="delete a Job that differs, or is over, and make it anew")
    flag("--force-conflicts", action="store_true", help="take over fields that somebody else has set")
    flag("--dry-run", action="store_true", help="print what would be created, as YAML, and ask no cluster")
    add_follow_flags(parser, "on a terminal")
    add_cluster_flags(parser, namespace=False)


def run(options: argparse.Namespace) -> int:
    changes = Changes(
        run=options.run,
        preset=options.preset,
        steps=options.steps,
        settings=dict(map(_pair, options.set)),
        registry=options.registry,
        tag=options.tag,
    )
    changes.check(options.stage)
    objects = changed(_wanted(options), changes)
    if options.dry_run:
        print(as_yaml(objects), end="")
        return 0
    api = open_api(options)
    done = apply(api, objects, options.replace, options.force_conflicts, note)
    live = [each.live for each in done if each.live is not None and stage_of(each.live) in JOBS]
    if not live:
        return 0
    if options.follow if options.follow is not None else sys.stdout.isatty():
        return follow(api, live, options)
    note(f"not followed; its log: {back_to(live[0], options)}")
    return 0


def _wanted(options: argparse.Namespace) -> list[Object]:
    objects = read_manifests(options.manifests)
    where = sorted({namespace_of(each) for each in jobs_of(objects)})
    if len(where) > 1:
        raise UsageError(
            f"--manifests: stages in the namespaces {', '.join(where)}; they work on one volume, in one"
        )
    if options.stage == ALL:
        return objects
    found = jobs_of(objects, options.stage)
    if not found:
        there = ", ".join(sorted({stage_of(each) for each in jobs_of(objects)})) or "no stage"
        raise UsageError(
            f"no Job with the label app.kubernetes.io/component: {options.stage} in the manifests; there: {there}"
        )
    return found


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text!r}: needed: KEY=VALUE")
    return key.strip(), value.strip()
