"""Following from the command line: its flags, Ctrl-C, and what is said when the connection is lost for good."""

import argparse
import math
from collections.abc import Sequence

from jaxport.cluster.api import Api, Object
from jaxport.cluster.errors import NotFit
from jaxport.cluster.flags import again, note
from jaxport.cluster.follow import Follow
from jaxport.cluster.followed import FollowSettings
from jaxport.cluster.stages import named, namespace_of, run_of, stage_of

DETACHED = 130


def add_follow_flags(parser: argparse.ArgumentParser, default: str) -> None:
    flag = parser.add_argument
    flag(
        "--follow",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"the logs, until the Job is over (default: {default})",
    )
    flag(
        "--patience",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="while following: how long the cluster may be out of reach (default: %(default)g)",
    )


def follow(api: Api, jobs: Sequence[Object], options: argparse.Namespace) -> int:
    """Follows Jobs of one namespace to the end, or until Ctrl-C.

    Raises:
        JobEnded: with the exit code of a Job that is not complete. NotFit: it cannot be followed; the Job goes on.
    """
    names = ", ".join(map(named, jobs))
    back, stop = (
        back_to(jobs[0], options),
        again("cancel", options, *_words(jobs[0]), namespace=namespace_of(jobs[0])),
    )
    settings = FollowSettings(patience=options.patience, tail=getattr(options, "tail", None))
    try:
        Follow(api, jobs, settings, _out, note).run()
    except KeyboardInterrupt:
        note(f"detached; {names} goes on. Its log: {back}; to stop it: {stop}")
        return DETACHED
    except NotFit as error:
        raise NotFit(f"{error}. {names} goes on; to follow it again: {back}") from error
    return 0


def back_to(job: Object, options: argparse.Namespace) -> str:
    """The command that follows a Job that is there."""
    return again("logs", options, *_words(job), "--follow", namespace=namespace_of(job))


def _words(job: Object) -> list[str]:
    run = run_of(job)
    return [stage_of(job), *(["--run", run] if run else [])]


def _out(line: str) -> None:
    print(line, flush=True)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 <= value <= 86400):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; needed: 0 to 86400 seconds")
    return value
