"""jaxport verify work/models/nano/1"""

import argparse

from converters.verify import verdict_lines, verify


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="models/<name>/<version>")


def run(options: argparse.Namespace) -> int:
    first, *others = verdict_lines(verify(options.bundle))
    print(f"{options.bundle}: {first}", *others, sep="\n")
    return 0
