"""jaxport verify work/models/nano/1"""

import argparse

from converters.verify import verify


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="models/<name>/<version>")


def run(options: argparse.Namespace) -> int:
    verdict = verify(options.bundle)
    how = (
        "bit for bit"
        if verdict.worst_share == 0
        else f"worst error {verdict.worst_share:.1%} of what is allowed"
    )
    print(f"{options.bundle}: {verdict.goldens} goldens reproduced on {verdict.platform}, {how}")
    return 0
