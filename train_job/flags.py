"""The flags of `jaxport train`. Imports no JAX."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from train_job.errors import UsageError
from train_job.presets import BUILT_IN
from train_job.processes import ALONE, SILENCE_S, WAIT_S, Processes
from train_job.settings import DEFAULT_DATA, DEFAULT_ROOT, TrainSettings, accepted_keys


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every flag of a training run to `parser`."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(BUILT_IN)}")
    which.add_argument("--model", metavar="PACKAGE.MODULE:FACTORY", help="a function that returns a Preset")
    parser.add_argument(
        "--root",
        type=Path,
        default=DEFAULT_ROOT,
        metavar="DIR",
        help="holds runs/ and models/ (default: ./work)",
    )
    parser.add_argument("--run", metavar="NAME", help="the run's name (default: the preset's)")
    parser.add_argument("--steps", metavar="N", help="planned steps (default: the preset's)")
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="a path, a glob, a folder that `jaxport data prepare` made, tinyshakespeare or stdlib (default: "
        f"{DEFAULT_DATA}, this Python's own sources)",
    )
    parser.add_argument(
        "--mesh",
        metavar="AXIS=N,...",
        help="devices for each axis of data, fsdp, tensor, such as data=2,fsdp=4 (default: all on data)",
    )
    parser.add_argument(
        "--wait-for-peers",
        default=WAIT_S,
        metavar="SECONDS",
        help=f"how long several processes wait for each other at the start (default: {WAIT_S})",
    )
    parser.add_argument(
        "--peer-timeout",
        default=SILENCE_S,
        metavar="SECONDS",
        help=f"after how much silence one of several processes counts as lost (default: {SILENCE_S})",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        help="process 0 answers a Prometheus at /metrics of this port while it trains (default: none)",
    )
    parser.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="where --metrics-port listens; in a cluster 0.0.0.0 (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--profile",
        metavar="A:B",
        help="trace the steps after A up to B into the run's folder, such as 20:25: docs/training.md (default: none)",
    )
    parser.add_argument(
        "--skip-nonfinite",
        metavar="N",
        help="pass over up to N steps in a row whose loss or gradient is no number (default: 0: stop, exit 3)",
    )
    parser.add_argument(
        "--no-resume",
        action="store_true",
        help="start from step 0; a run of that name is moved aside, not deleted",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"change a setting, again and again: {', '.join(sorted(accepted_keys()))}",
    )


def processes_from(namespace: argparse.Namespace, environment: Mapping[str, str]) -> Processes:
    """Which process this is, and its flags. Raises UsageError."""
    return Processes.from_environment(environment, namespace.wait_for_peers, namespace.peer_timeout)


def settings_from(namespace: argparse.Namespace, processes: Processes = ALONE) -> TrainSettings:
    """The settings that parsed flags describe. Raises UsageError."""
    return TrainSettings.from_flags(
        preset=namespace.preset,
        model=namespace.model,
        root=namespace.root,
        run=namespace.run,
        steps=namespace.steps,
        data=namespace.data,
        mesh=namespace.mesh,
        resume=not namespace.no_resume,
        processes=processes,
        metrics_port=namespace.metrics_port,
        metrics_host=namespace.metrics_host,
        skip_nonfinite=namespace.skip_nonfinite,
        profile=namespace.profile,
        overrides=dict(_pair(text) for text in namespace.set),
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(
            f"--set: found {text!r}, needs key=value with a key of {', '.join(sorted(accepted_keys()))}"
        )
    return key.strip(), value.strip()
