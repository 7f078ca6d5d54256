"""python3 -m deploy.images [--accelerator cpu|cuda12] [--target train|export|serve ...] [--base IMAGE]"""

import argparse
import sys
from pathlib import Path

from deploy.images.base import OFFICIAL, base_image
from deploy.images.build import ACCELERATORS, TARGETS, Build, build
from deploy.images.engine import NotPossible, find_engine
from deploy.images.labels import labels, version

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    options = arguments()
    try:
        engine = find_engine(ROOT / "build" / "images")
        base = base_image(engine, options.base, say)
        stated = labels(ROOT, options.source)
        for target in options.target or TARGETS:
            wanted = Build(target, options.accelerator, base, version(ROOT))
            say(f"{wanted.tag}: being built with {engine.name}")
            say(f"{wanted.tag}: {build(engine, ROOT, wanted, stated) / 1e6:.0f} MB")
    except NotPossible as refused:
        print(f"images: {refused}", file=sys.stderr)
        return 4
    return 0


def say(line: str) -> None:
    print(line, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m deploy.images", description="Builds jaxport's images.")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="cpu")
    parser.add_argument("--target", choices=TARGETS, action="append", help="one of them; all when not given")
    parser.add_argument(
        "--base", metavar="IMAGE", help=f"python3 >= 3.12 with venv; {OFFICIAL} when not given"
    )
    parser.add_argument(
        "--source", metavar="URL", default="unknown", help="where the source is, for the label"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
