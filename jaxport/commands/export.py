"""jaxport export --run nano [--step latest|best|N]
jaxport export --fn package.module:name --params DIR --name MODEL
"""

import argparse
import math
from pathlib import Path

from converters.cuts import parse_axes
from converters.errors import BadSpec
from converters.export import PLATFORMS, parse_version_name
from converters.fewer_bits import STORED, parse_weights_dtype
from converters.formats import parse_formats
from converters.lint import parse_allowed
from converters.options import ExportOptions
from converters.placement import simulate
from converters.spec import parse_batches
from jaxport.commands.export_formats import add_format_flags, asked_formats, format_lines

# Flags of a run's export alone, with what they are when they are not given.
OF_A_RUN = {"step": "latest", "wait": False, "skip_existing": False, "dynamic_length": False}


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", metavar="NAME", help="the run below ROOT/runs")
    source.add_argument(
        "--fn", metavar="MODULE:NAME", help="your own model: an ExportSpec, or a function that gives one"
    )
    flag("--params", type=Path, metavar="DIR", help="with --fn: the Orbax checkpoint of its params")
    flag("--root", type=Path, default=Path("work"), help="holds runs/ and models/ (default: ./work)")
    flag("--step", default="latest", metavar="latest|best|N", help="which checkpoint (default: latest)")
    flag("--wait", action="store_true", help="wait until the run is finished")
    flag("--name", metavar="MODEL", help="the model's name (default: the run's)")
    flag("--version", default="next", metavar="next|N", help="the version's number (default: next)")
    flag(
        "--skip-existing",
        action="store_true",
        help="write nothing when a version of this checkpoint is there, exported alike by this JAX; of several such "
        "exports at once one writes",
    )
    flag(
        "--dynamic-length",
        action="store_true",
        help="let each request choose the length of its sequences (default: the length that was trained)",
    )
    flag(
        "--allow",
        action="append",
        default=[],
        metavar="JP1xx=REASON",
        help="let a rule of docs/lint.md find something, and record why that is right here; repeatable",
    )
    flag(
        "--fixed-batch",
        metavar="N,N",
        help="a program for each of these batches, as 1,2,4,8, for a model that cannot be one for any (default: one)",
    )
    add_format_flags(parser)
    flag(
        "--weights-dtype",
        metavar="|".join(STORED),
        help="store matrices in fewer bits; the program computes as before: docs/precision.md (default: as they are)",
    )
    flag(
        "--calling-convention",
        type=int,
        metavar="N",
        help="of jax.export, for a reader that needs an older one (default: JAX's own)",
    )
    flag(
        "--vjp-order",
        type=int,
        default=0,
        metavar="K",
        help="how often whoever loads the bundle in Python can differentiate it: 1 for gradients (default: 0)",
    )
    flag(
        "--mesh",
        default="",
        metavar="AXIS=N",
        help="programs for N devices, over which the weights are cut: tensor=N; docs/sharded.md (default: one device)",
    )
    flag("--platforms", default="cpu,cuda", help=f"some of {','.join(PLATFORMS)} (default: cpu,cuda)")


def check(options: argparse.Namespace) -> None:
    """What can be said of the flags before anything is read. Raises BadSpec."""
    if options.step not in ("latest", "best") and not options.step.isdigit():
        raise BadSpec(f"--step {options.step!r}: latest, best or a step's number is needed")
    parse_version_name(options.version)
    parse_allowed(options.allow)
    parse_weights_dtype(options.weights_dtype)
    parse_axes(options.mesh)
    if options.vjp_order < 0:
        raise BadSpec(f"--vjp-order {options.vjp_order}: 0, 1 or more is needed")
    _fixed_batches(options)
    if options.fn is None:
        if options.params is not None:
            raise BadSpec("--params: belongs to --fn; of a run --step chooses the checkpoint")
        return
    for name, default in OF_A_RUN.items():
        if getattr(options, name) != default:
            raise BadSpec(f"--{name.replace('_', '-')}: belongs to --run; with --fn leave it out")
    for name, needed in (
        ("params", "DIR, the checkpoint of its params"),
        ("name", "MODEL, the model's name"),
    ):
        if getattr(options, name) is None:
            raise BadSpec(f"--fn {options.fn}: --{name} {needed}, is needed with it")


def _fixed_batches(options: argparse.Namespace) -> tuple[int, ...] | None:
    """None where none are asked for. Raises BadSpec."""
    if options.fixed_batch is None:
        return None
    numbers = [number.strip() for number in options.fixed_batch.split(",")]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise BadSpec(f"--fixed-batch {options.fixed_batch!r}: numbers of rows are needed, as 1,2,4,8")
    return parse_batches([int(number) for number in numbers])


def run(options: argparse.Namespace) -> int:
    check(options)
    asked = _asked(options)
    axes = asked.axes
    parse_formats(asked.formats)
    simulate(math.prod(axes.values()))
    path, written = _export_run(options, asked) if options.fn is None else _export_function(options, asked)
    # After the flags are checked, as above: what these modules import takes seconds.
    from converters.bundle import read_manifest
    from converters.describe import stored_lines

    manifest = read_manifest(path)
    for signature in manifest.signatures.values():
        takes = ", ".join(map(str, signature.inputs))
        gives = ", ".join(map(str, signature.outputs))
        print(f"{signature.name}: {takes} -> {gives}")
    if manifest.stored_weights is not None:
        print("\n".join(stored_lines(manifest.stored_weights)))
    size = sum(d.bytes for d in manifest.files.values())
    done = "wrote" if written else "kept"
    print(f"{done} {path}: {size / 1e6:.1f} MB, loads in jaxlib released until {manifest.window_ends}")
    for line in format_lines(path, manifest):
        print(line)
    return 0


def _asked(options: argparse.Namespace) -> ExportOptions:
    """What the flags say of an export, whatever it is of. Raises BadSpec."""
    return ExportOptions(
        platforms=tuple(p.strip() for p in options.platforms.split(",") if p.strip()),
        formats=asked_formats(options),
        allow=parse_allowed(options.allow),
        weights_dtype=options.weights_dtype,
        calling_convention=options.calling_convention,
        vjp_order=options.vjp_order,
        mesh=parse_axes(options.mesh),
    )


def _export_run(options: argparse.Namespace, asked: ExportOptions) -> tuple[Path, bool]:
    from converters.from_run import RunExport, export_run

    settings = RunExport(
        root=options.root,
        run=options.run,
        step=options.step,
        name=options.name,
        version=options.version,
        wait=options.wait,
        dynamic_length=options.dynamic_length,
        skip_existing=options.skip_existing,
        fixed_batches=_fixed_batches(options),
        options=asked,
    )
    return export_run(settings)


def _export_function(options: argparse.Namespace, asked: ExportOptions) -> tuple[Path, bool]:
    from converters.from_function import FunctionExport, export_function

    settings = FunctionExport(
        root=options.root,
        fn=options.fn,
        params=options.params,
        name=options.name,
        version=options.version,
        fixed_batches=_fixed_batches(options),
        options=asked,
    )
    return export_function(settings), True
