"""The `jaxport` command: finds the subcommand, runs it, turns errors into one line and an exit code.

Only the module of the chosen subcommand is imported, so that `jaxport predict` needs no JAX and `--help` is quick.
"""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from jaxport.pipes import lasting_output
from jaxport.stopping import end, leaving_on_signals, unwinding_on_sigterm

# Subcommand -> (the extra that brings what it needs, what it does).
COMMANDS = {
    "data": ("train", "make token shards of text, for training on more than memory holds"),
    "train": ("train", "train a model and write checkpoints"),
    "runs": ("", "list the runs of a root, or compare some of them"),
    "export": ("export", "turn a checkpoint into a bundle"),
    "refresh": ("export", "export a bundle's checkpoint again, with this JAX, into the next version"),
    "verify": ("serve", "run a bundle's goldens in a fresh isolated process"),
    "inspect": ("serve", "what a bundle is, takes and weighs, until when it loads"),
    "compare": ("serve", "run a bundle in every way there is, side by side, and measure"),
    "promote": ("serve", "point a label at a version, roll it back, or set which versions serve"),
    "serve": ("serve", "serve every bundle below a folder over gRPC"),
    "drain": ("", "empty the Envoy in front of a server, before the server stops"),
    "predict": ("", "call a served model"),
    "bench": ("", "load a served model and measure it"),
    "submit": ("k8s", "create the Jobs of the stages on a cluster and follow them"),
    "status": ("k8s", "how the stages on a cluster fare"),
    "logs": ("k8s", "the log of a stage on a cluster"),
    "cancel": ("k8s", "stop a stage on a cluster; what it has saved stays"),
}
# These show what there is, and end with their reader. The others do something, and end when it is done.
SHOWING = frozenset({"runs", "inspect", "predict", "status", "logs"})
INTERRUPTED = 130
USAGE = 2
UNFIT = 4
# What a file system says of itself, whichever call of ours comes first to hear it.
REFUSED = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
    }
)
PREEMPTED = 75


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code; see docs/architecture.md for their meaning."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    try:
        with _until_taken_over(chosen), nullcontext() if chosen in SHOWING else lasting_output():
            parser = _parser(chosen if chosen in COMMANDS else None)
            options = parser.parse_args(arguments)
            return options.handler(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (| head): nothing to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # Every package's errors carry their exit code; anything without one is a fault of ours and shows itself.
        code, line = getattr(error, "exit_code", None), str(error)
        if isinstance(error, OSError) and error.filename and error.errno in REFUSED:
            code, line = (
                USAGE if error.errno == errno.ENAMETOOLONG else UNFIT,  # names come from flags
                f"{os.fsdecode(error.filename)}: {error.strerror}; make it fit or name another place",
            )
        if code is None or "--debug" in arguments:
            raise
        print(f"error: {line}", file=sys.stderr)
        return code


def entry() -> NoReturn:
    """The command as a process of its own."""
    end(main())


def _until_taken_over(chosen: str | None) -> AbstractContextManager[None]:
    """What a signal does until the command has handlers of its own, and for good in commands that have none.

    A trainer that was told to stop before it began is to be started again, like any that was preempted.
    """
    if chosen == "serve":
        return leaving_on_signals()
    return leaving_on_signals(PREEMPTED) if chosen == "train" else unwinding_on_sigterm()


class _OneLine(argparse.ArgumentParser):
    """Says what is wrong with the arguments, and not every flag there is; the parsers of the subcommands do the same."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}; see {self.prog} --help\n")


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    parser = _OneLine(
        prog="jaxport", description="Carries a JAX model from a training Job to a warm gRPC server."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, (extra, what) in COMMANDS.items():
        sub = commands.add_parser(
            name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False
        )
        if name == chosen:
            module = _load(name, extra)
            module.add_flags(sub)
            sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
            sub.set_defaults(handler=module.run)
    return parser


def _load(name: str, extra: str):
    try:
        return importlib.import_module(f"jaxport.commands.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not extra or missing in ("", "jaxport", "train_job", "converters", "serve_grpc"):
            raise
        from jaxport.errors import NotFit  # gRPC takes a tenth of a second to import

        raise NotFit(f"jaxport {name} needs {missing}: pip install 'jaxport[{extra}]'") from error


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"jaxport {version('jaxport')}"
    except PackageNotFoundError:
        return "jaxport from a source tree"


if __name__ == "__main__":
    entry()
