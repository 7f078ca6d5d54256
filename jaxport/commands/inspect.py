"""jaxport inspect work/models/nano/1 [--json | --stablehlo [FILE]]"""

import argparse
import json
from pathlib import Path

from converters.bundle import open_bundle
from converters.describe import as_json, program_text, save_text, summary

TERMINAL = Path("-")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="models/<name>/<version>")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the manifest and what follows from it")
    form.add_argument(
        "--stablehlo", nargs="?", type=Path, const=TERMINAL, metavar="FILE", help="the program as text"
    )
    parser.add_argument("--signature", default="predict", help="whose program (default: predict)")


def run(options: argparse.Namespace) -> int:
    bundle = open_bundle(options.bundle)
    if options.json:
        print(json.dumps(as_json(bundle), indent=2))
    elif options.stablehlo:
        text, counts = program_text(bundle, options.signature)
        print(save_text(text, None if options.stablehlo == TERMINAL else options.stablehlo))
        print(counts)
    else:
        print(summary(bundle))
    return 0
