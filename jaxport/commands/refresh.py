"""jaxport refresh work/models/nano/1"""

import argparse
from pathlib import Path


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="models/<name>/<version>, of a run")
    parser.add_argument(
        "--root", type=Path, help="holds runs/ and models/ (default: where the bundle lies, or ./work)"
    )


def run(options: argparse.Namespace) -> int:
    from converters.bundle import read_manifest
    from converters.refresh import refresh

    done = refresh(options.bundle, options.root)
    manifest, before = read_manifest(done.path), done.old.manifest
    how = "bit for bit" if done.worst_share == 0 else f"worst error {done.worst_share:.1%} of what is allowed"
    print(f"{done.goldens} goldens of {options.bundle} (jax {before.jax_version}) answered, {how}")
    print(
        f"wrote {done.path}: jax {manifest.jax_version}, loads in jaxlib released until {manifest.window_ends}"
    )
    return 0
