"""jaxport compare work/models/nano/1 [--out DIR] [--batches 1,4,16,64] [--json]"""

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from converters.compare.figures import Asked, Comparison
from converters.compare.side_by_side import compare
from converters.errors import BadSpec, GoldenMismatch
from converters.publish import storage_errors

DEFAULT = Asked()
PIPE_COLUMNS = 100


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("bundle", help="models/<name>/<version>")
    flag(
        "--out",
        type=Path,
        metavar="DIR",
        help="write compare.html, compare.png and compare.json there, over those of an earlier time",
    )
    flag(
        "--batches",
        default=",".join(map(str, DEFAULT.batches)),
        metavar="N,...",
        help="rows of a call (default: %(default)s)",
    )
    flag(
        "--seconds",
        type=float,
        default=DEFAULT.seconds,
        help="for each way and batch, over all rounds (default: %(default)g)",
    )
    flag(
        "--rounds",
        type=int,
        default=DEFAULT.rounds,
        help="turns that every way has at every batch (default: %(default)s)",
    )
    flag("--signature", default=DEFAULT.signature, help="which program (default: %(default)s)")
    flag(
        "--no-source",
        action="store_true",
        help="jit of the exported program: import nothing that the manifest names",
    )
    flag(
        "--tensorflow-python",
        default="",
        metavar="PYTHON",
        help="an interpreter that has TensorFlow, for the SavedModel (default: this one)",
    )
    flag("--json", action="store_true", help="the figures as one object, in place of the table")


def run(options: argparse.Namespace) -> int:
    asked = Asked(
        batches=_batches(options.batches),
        seconds=options.seconds if math.isfinite(options.seconds) else 0.0,
        rounds=options.rounds,
        signature=options.signature,
        source=not options.no_source,
        tensorflow_python=options.tensorflow_python,
    )
    if options.out is not None:
        _make(options.out)
    with _progress() as say:
        found = compare(options.bundle, asked, say)
    if options.json:
        print(json.dumps(found.as_json()))
    else:
        from rich.console import Console

        from converters.compare.table import print_table

        # A pipe has no width; 80 columns are too few.
        print_table(found, Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS))
    if options.out is not None:
        _write(found, options.out)
    wrong = [f"{way.name}: {way.mismatch}" for way in found.ways if way.mismatch]
    if wrong:
        raise GoldenMismatch(wrong[0])
    return 0


def _batches(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise BadSpec(f"--batches {text!r}: positive integers joined by commas are needed")
    return tuple(map(int, parts))


def _make(folder: Path) -> None:
    """Before minutes are measured whose figures have no place."""
    if folder.exists() and not folder.is_dir():
        raise BadSpec(f"--out {folder}: is no folder; name one, or a path where there is nothing yet")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def _write(found: Comparison, folder: Path) -> None:
    from converters.compare.page import render
    from converters.compare.plot import draw

    written = ["compare.html", "compare.json"]
    with storage_errors(folder):
        (folder / "compare.html").write_text(render(found), encoding="utf-8")
        (folder / "compare.json").write_text(json.dumps(found.as_json(), indent=2) + "\n")
        try:
            (folder / "compare.png").write_bytes(draw(found))
            written.append("compare.png")
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            print(f"no picture: {missing} is not installed; pip install 'jaxport[train]'", file=sys.stderr)
    print(f"wrote {', '.join(written)} in {folder}", file=sys.stderr)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """One moving line on a terminal, a line for each step elsewhere; on standard error."""
    if not sys.stderr.isatty():
        yield lambda line: print(line, file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("reading the bundle") as status:
        yield lambda line: status.update(Text(line))
