"""Does a bundle still answer as its source did? Asked in a fresh process that has nothing but the bundle.

    python -m converters.verify models/nano/1

The child runs isolated (python -I) and cannot import a model library, so a bundle that leans on one fails here.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from converters import errors
from converters.bundle import open_bundle
from converters.errors import ConvertError, PlatformMissing

# What a loader must never need. A bundle whose program or weights pull one in is not self-contained.
FORBIDDEN = ("flax", "optax", "equinox", "haiku", "tensorflow", "train_job", "serve_grpc")
CHILD = "import sys; sys.path.insert(0, {home!r}); from converters.verify import child; sys.exit(child(sys.argv[1]))"


@dataclass(frozen=True)
class Verdict:
    """What was run, and the largest error as a share of what is allowed (0: bit for bit)."""

    platform: str
    goldens: int
    worst_share: float
    jaxlib_version: str


def verify(path: Path | str) -> Verdict:
    """Runs every golden of the bundle at `path` in a fresh isolated process.

    BundleNotFound, BundleError, GoldenMismatch, PlatformMissing as the child met them.
    """
    home = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-I", "-c", CHILD.format(home=home), str(Path(path).absolute())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = _last_json(done.stdout)
    if report is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise errors.BundleError(f"{path}: the verifying process died with status {done.returncode}: {last}")
    if "error" in report:
        raise getattr(errors, report["error"])(report["message"])
    return Verdict(**report)


def child(path: str) -> int:
    """Body of the isolated process: one JSON object on the last line of standard output."""
    # None makes an import of the name fail, and importlib.util.find_spec say that it is not installed.
    sys.modules.update(dict.fromkeys(FORBIDDEN))  # pyright: ignore[reportArgumentType, reportCallIssue]
    try:
        report: dict[str, Any] = asdict(_run_goldens(Path(path)))
    except ConvertError as error:
        report = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(report))
    return 0


def _run_goldens(path: Path) -> Verdict:
    import jax.export

    from converters.run import compiled_runner

    bundle = open_bundle(path)
    jax.config.update("jax_enable_x64", True)  # a program has the dtypes it was exported with
    platform = jax.export.default_export_platform()
    if platform not in bundle.manifest.platforms:
        raise PlatformMissing(
            f"{path}: has programs for {', '.join(bundle.manifest.platforms)}, this machine is {platform}; "
            f"verify it on one of those, or export with --platforms {platform}"
        )
    weights = jax.device_put(bundle.load_weights())
    count, worst = 0, 0.0
    for name in bundle.manifest.signatures:
        run = compiled_runner(bundle.exported(name), weights)
        for golden in bundle.goldens(name):
            worst = max(worst, bundle.check_golden(name, golden, run(golden.inputs), platform))
            count += 1
    return Verdict(platform, count, worst, bundle.manifest.jaxlib_version)


def _last_json(text: str) -> dict[str, Any] | None:
    lines = text.strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a bundle's goldens in a fresh isolated process.")
    parser.add_argument("bundle")
    try:
        print(verify(parser.parse_args().bundle))
    except ConvertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
