"""The flags of an export for what lies beside the program, and what is said of it afterwards."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from converters.errors import BadSpec
from converters.manifest import Manifest


def add_format_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag(
        "--savedmodel",
        nargs="?",
        const="cpu",
        metavar="PLATFORMS",
        help="also write savedmodel/1 for TensorFlow Serving, for these platforms (default: cpu)",
    )
    flag(
        "--stablehlo",
        nargs="?",
        const="",
        metavar="BATCHES",
        help="also write stablehlo/, one fixed shape for each batch, as 1,4,16 (default: powers of two up to 32)",
    )
    flag("--onnx", action="store_true", help="also write onnx/ for onnxruntime")


def asked_formats(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Options by format, as export_bundle takes them.

    BadSpec: batches that are none.
    """
    formats: dict[str, dict[str, Any]] = {}
    if options.savedmodel is not None:
        formats["savedmodel"] = {"platforms": _listed(options.savedmodel)}
    if options.stablehlo is not None:
        batches = _listed(options.stablehlo)
        if not all(b.isdigit() and int(b) for b in batches):
            raise BadSpec(f"--stablehlo {options.stablehlo!r}: batches are needed, as 1,4,16")
        formats["stablehlo"] = {"batches": tuple(map(int, batches))}
    if options.onnx:
        formats["onnx"] = {}
    return formats


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def format_lines(path: Path, manifest: Manifest) -> Iterator[str]:
    """What a person may do next with the formats of the bundle at `path`."""
    for name, facts in manifest.formats.items():
        checked = facts.get("checked")
        if checked:
            yield f"{name}: the goldens reproduced by {checked['with']}, worst difference {checked['worst_difference']:.2g}"
        else:
            yield f"{name}: lowered only, nothing here runs it"
    if "savedmodel" in manifest.formats:
        from converters.formats.savedmodel import serving_command

        yield f"TensorFlow Serving: {serving_command(manifest.model, path)}"
