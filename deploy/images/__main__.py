"""python3 -m deploy.images [--accelerator cpu|cuda12] [--tag TAG] [--target train|export|serve ...] [--base IMAGE]
[--platform linux/amd64]
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.images.base import OFFICIAL, base_image
from deploy.images.build import ACCELERATORS, PLATFORM, TARGETS, Build, build
from deploy.images.engine import NotPossible, find_engine
from deploy.images.labels import labels, version

TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    options = arguments()
    try:
        engine = find_engine(ROOT / "build" / "images")
        base = base_image(engine, options.base, say, options.platform)
        stated = labels(ROOT, options.source)
        for target in options.target or TARGETS:
            wanted = Build(target, options.accelerator, base, options.tag, options.platform)
            say(f"{wanted.tag}: being built with {engine.name}")
            say(f"{wanted.tag}: {build(engine, ROOT, wanted, stated) / 1e6:.0f} MB")
    except NotPossible as refused:
        print(f"images: {refused}", file=sys.stderr)
        return 4
    return 0


def say(line: str) -> None:
    print(line, flush=True)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m deploy.images", description="Builds jaxport's images.")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="cpu")
    parser.add_argument(
        "--tag",
        type=tag,
        default=version(ROOT),
        metavar="TAG",
        help="what comes before -cpu or -cuda12; the project's version when not given",
    )
    parser.add_argument("--target", choices=TARGETS, action="append", help="one of them; all when not given")
    parser.add_argument(
        "--base", metavar="IMAGE", help=f"python3 >= 3.12 with venv; {OFFICIAL} when not given"
    )
    parser.add_argument(
        "--platform",
        default=PLATFORM,
        metavar="OS/ARCHITECTURE",
        help=f"of the nodes that will run them; {PLATFORM} when not given, on every machine",
    )
    parser.add_argument(
        "--source", metavar="URL", default="unknown", help="where the source is, for the label"
    )
    return parser.parse_args(words)


def tag(text: str) -> str:
    """The first part of a tag. Raises argparse.ArgumentTypeError, which ends with 2."""
    if not TAG.fullmatch(text) or "latest" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r}: needed: up to 100 letters, digits, '_', '.' and '-', not first one of the last two; and not "
            "latest, by which nobody can tell an old image from a new one"
        )
    return text


if __name__ == "__main__":
    sys.exit(main())
