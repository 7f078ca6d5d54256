"""Does a bundle still answer as its source did? Asked in a fresh process that has nothing but the bundle.

    python -m converters.verify models/nano/1

The child runs isolated (python -I) and cannot import a model library, so a bundle that leans on one fails here.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from converters import errors
from converters.errors import ConvertError
from converters.formats import FORMATS, load_format, missing, reference_tolerances
from converters.formats.answers import Case, Written, check_answers
from converters.golden import unpack_goldens
from converters.manifest import Manifest, Signature, Tolerance
from converters.manifest_json import parse_manifest

# What a loader must never need, but for the library of the very format that is verified. A bundle whose program or weights pull one in is not self-contained.
FORBIDDEN = ("flax", "optax", "equinox", "haiku", "tensorflow", "train_job", "serve_grpc")
CHILD = "import sys; sys.path.insert(0, {home!r}); from converters.verify import child; sys.exit(child(*sys.argv[1:]))"


@dataclass(frozen=True)
class FormatVerdict:
    """What became of a further format. not_run: why, where it could not be; then the others say nothing.

    runtime: what ran it. worst_difference: the largest, in the outputs' own units.
    """

    name: str
    not_run: str = ""
    runtime: str = ""
    goldens: int = 0
    worst_difference: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What was run, and the largest error as a share of what is allowed (0: bit for bit).

    lowered_only: platforms of the bundle that this machine is not.
    """

    platform: str
    goldens: int
    worst_share: float
    jaxlib_version: str
    lowered_only: tuple[str, ...] = ()
    formats: tuple[FormatVerdict, ...] = ()


def verify(path: Path | str) -> Verdict:
    """Runs every golden of the bundle at `path`, and of each format that can run here, in a fresh isolated process each.

    BundleNotFound, BundleError, GoldenMismatch, PlatformMissing as the children met them. Formats are all tried: the error
    of one has those of the others behind it.
    """
    report = _in_child(path)
    names = report.pop("formats")
    verdicts, failed = [], []
    for name in names:
        try:
            verdicts.append(_verify_format(path, name))
        except ConvertError as error:
            failed.append(error)
    if failed:
        raise type(failed[0])("; and ".join(map(str, failed)))
    report["lowered_only"] = tuple(report["lowered_only"])
    return Verdict(**report, formats=tuple(verdicts))


def _verify_format(path: Path | str, name: str) -> FormatVerdict:
    if name not in FORMATS:
        return FormatVerdict(name, f"this jaxport knows {', '.join(FORMATS)}")
    if not FORMATS[name].runs:
        return FormatVerdict(name, "nothing here runs it")
    if absent := missing(FORMATS[name].runs):
        return FormatVerdict(name, f"{', '.join(absent)} is not installed here")
    return FormatVerdict(**_in_child(path, name))


def _in_child(path: Path | str, *format_name: str) -> dict[str, Any]:
    """What the isolated process reports; raises what it met."""
    home = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-I", "-c", CHILD.format(home=home), str(Path(path).absolute()), *format_name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = _last_json(done.stdout)
    if report is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise errors.BundleError(f"{path}: the verifying process died with status {done.returncode}: {last}")
    if "error" in report:
        raise getattr(errors, report["error"])(report["message"])
    return report


def child(path: str, format_name: str = "") -> int:
    """Body of the isolated process: one JSON object on the last line of standard output."""
    # None makes an import of the name fail, and importlib.util.find_spec say that it is not installed.
    needed = FORMATS[format_name].runs if format_name else ()
    sys.modules.update({name: None for name in FORBIDDEN if name not in needed})  # pyright: ignore[reportArgumentType, reportCallIssue]
    try:
        report = _run_format(Path(path), format_name) if format_name else _run_goldens(Path(path))
    except ConvertError as error:
        report = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(report))
    return 0


def _run_goldens(path: Path) -> dict[str, Any]:
    import jax

    from converters.bundle import open_bundle
    from converters.gradient import differentiable, rerun
    from converters.loaded import check_platform
    from converters.placement import Placement, place, simulate
    from converters.run import program_runner

    bundle = open_bundle(path)
    simulate(bundle.manifest.nr_devices)
    jax.config.update("jax_enable_x64", True)  # a program has the dtypes it was exported with
    platform = check_platform(bundle)
    weights = place(bundle.load_weights(), Placement.of(bundle.manifest, str(path)))
    count, worst = 0, 0.0
    for name, signature in bundle.manifest.signatures.items():
        goldens = bundle.goldens(name)
        count += len(goldens)
        for batch, exported in bundle.programs(name).items():  # each has to answer all of them by itself
            run = program_runner({batch: exported}, weights, signature.pad)
            for golden in goldens:
                worst = max(worst, bundle.check_golden(name, golden, run(golden.inputs), platform))
        if (golden := bundle.gradient_golden(name)) is not None:
            call = differentiable(bundle.exported(name), signature.vjp_order)
            got = rerun(call, weights, golden)
            worst = max(worst, bundle.check_gradient(name, golden, got, platform))
            count += 1
    return {
        "platform": platform,
        "goldens": count,
        "worst_share": worst,
        "jaxlib_version": bundle.manifest.jaxlib_version,
        "lowered_only": [p for p in bundle.manifest.platforms if p != platform],
        "formats": list(bundle.manifest.formats),
    }


def _run_format(path: Path, name: str) -> dict[str, Any]:
    """Of a bundle whose files were hashed before. Weights, which need JAX to be read, are read where a format asks."""

    def weights() -> Any:
        from converters.bundle import open_bundle

        return open_bundle(path).load_weights()

    manifest = parse_manifest((path / "manifest.json").read_bytes(), str(path))
    module = load_format(name)
    cases = [
        Case(
            signature,
            unpack_goldens((path / signature.golden).read_bytes(), str(path / signature.golden)),
            _tolerances(manifest, signature, path),
        )
        for signature in manifest.served.values()
    ]
    seen = check_answers(name, module, Written(path, manifest.formats[name], weights, manifest.files), cases)
    return asdict(FormatVerdict(name, "", module.runtime(), seen.goldens, seen.worst_difference))


def _tolerances(manifest: Manifest, signature: Signature, path: Path) -> dict[str, Tolerance]:
    """That a format is held to, by output."""
    try:
        allowed = reference_tolerances(manifest.tolerances)
        return {output.name: allowed[f"{signature.name}/{output.name}"] for output in signature.outputs}
    except (KeyError, StopIteration):
        raise errors.BundleError(
            f"{path / 'manifest.json'}: has no tolerance for an output of {signature.name!r}; export it again"
        ) from None


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """What was run and what was not, one line each."""
    how = "bit for bit"
    if verdict.worst_share:
        how = f"worst error {verdict.worst_share:.1%} of what is allowed"
    yield f"{verdict.goldens} goldens reproduced on {verdict.platform}, {how}"
    if verdict.lowered_only:
        yield f"{', '.join(verdict.lowered_only)}: lowered only, this machine is {verdict.platform}"
    for one in verdict.formats:
        if one.not_run:
            yield f"{one.name}: not run, {one.not_run}"
        else:
            yield f"{one.name}: {one.goldens} goldens reproduced by {one.runtime}, worst difference {one.worst_difference:.2g}"


def _last_json(text: str) -> dict[str, Any] | None:
    lines = text.strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a bundle's goldens in a fresh isolated process.")
    parser.add_argument("bundle")
    try:
        print("\n".join(verdict_lines(verify(parser.parse_args().bundle))))
    except ConvertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
