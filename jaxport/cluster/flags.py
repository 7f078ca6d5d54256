"""Flags of every command that talks to a cluster, and the client that they describe."""

import argparse
import sys

from jaxport.cluster import shape
from jaxport.cluster.access import Access, open_client
from jaxport.cluster.api import Api
from jaxport.cluster.stages import NAMESPACE


def add_cluster_flags(parser: argparse.ArgumentParser, namespace: bool = True) -> None:
    """namespace: for commands that read no manifests, which name one."""
    flag = parser.add_argument
    if namespace:
        flag(
            "-n",
            "--namespace",
            type=_namespace,
            default=NAMESPACE,
            metavar="NAME",
            help="default: %(default)s, as in deploy/",
        )
    flag("--context", metavar="NAME", help="of the kubeconfig (default: its current one)")
    flag(
        "--kubeconfig",
        metavar="FILE",
        help="default: KUBECONFIG, else ~/.kube/config, else the account of the pod that this runs in",
    )


def _namespace(text: str) -> str:
    """It becomes part of a path."""
    if not shape.NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no namespace; needed: {shape.NAMESPACE_NEEDED}")
    return text


def open_api(options: argparse.Namespace) -> Api:
    """Raises UsageError and NotFit: no cluster is named, or none that can be."""
    return Api(open_client(Access(options.kubeconfig, options.context)))


def note(text: str) -> None:
    """What happens, for people: beside the logs, which are all that standard output gets."""
    print(text, file=sys.stderr, flush=True)


def again(command: str, options: argparse.Namespace, *words: str, namespace: str | None = None) -> str:
    """A command with which to go on, on the same cluster."""
    where = namespace if namespace is not None else getattr(options, "namespace", NAMESPACE)
    line = ["jaxport", command, *words]
    if where != NAMESPACE:
        line += ["--namespace", where]
    for flag in ("kubeconfig", "context"):
        if getattr(options, flag):
            line += [f"--{flag}", getattr(options, flag)]
    return " ".join(line)
