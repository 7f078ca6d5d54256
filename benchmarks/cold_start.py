"""From the start of the process to READY: python -m benchmarks.cold_start [--rounds 5] [--cold-rounds 1]

cold: the compile cache is empty. warm: `jaxport serve --warm-only` filled it. floor: a process that imports the server's
modules and reads the weights, which no server can do without. One after the other in every round, on one machine, so
that the ratio of warm to floor holds where the absolute figures drift.
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.serving import export_models

FLOOR = """
import sys
from pathlib import Path

import serve_grpc.server
from converters.bundle import Bundle, read_manifest

path = Path(sys.argv[1])
weights = Bundle(path, read_manifest(path)).load_weights()
print("floor", len(weights), file=sys.stderr, flush=True)
"""
MODELS = ("mlp", "tiny")


@dataclass
class Seconds:
    """Of each kind of start, in the order they were measured."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    last_warm_line: str = ""

    @property
    def ratios(self) -> list[float]:
        """warm / floor, round by round."""
        return [warm / floor for warm, floor in zip(self.warm, self.floor, strict=True)]


def seconds_until(words: str, *arguments: str) -> tuple[float, str]:
    """Starts this Python and waits for a line of its log: (seconds since the start, the line). Then ends it."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True) as process:
        said = []
        try:
            for line in process.stderr or ():
                said.append(line)
                if words in line:
                    return time.perf_counter() - start, line.strip()
        finally:
            process.terminate()
    raise SystemExit(f"{' '.join(arguments)} ended without {words!r}:\n{''.join(said)}")


def start_server(root: Path) -> tuple[float, str]:
    """A server on the models of `root`: seconds to its ready line, and that line."""
    ports = ("--grpc-port", "0", "--http-port", "0", "--drain-delay", "0")
    return seconds_until(" ready ", "-m", "jaxport", "serve", "--models", str(root / "models"), *ports)


def measure(
    roots: dict[str, Path], rounds: int, cold_rounds: int, say: Callable[[str], None]
) -> dict[str, Seconds]:
    """Interleaved rounds over every model."""
    found = {model: Seconds() for model in roots}
    for number in range(max(rounds, cold_rounds)):
        for model, root in roots.items():
            seconds = found[model]
            if number < cold_rounds:
                shutil.rmtree(root / "cache", ignore_errors=True)
                seconds.cold.append(start_server(root)[0])
            if not (root / "cache").exists():
                say(f"warming {model}")
                command = [
                    sys.executable,
                    "-m",
                    "jaxport",
                    "serve",
                    "--warm-only",
                    "--models",
                    str(root / "models"),
                ]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            if number < rounds:
                took, seconds.last_warm_line = start_server(root)
                if not seconds.last_warm_line.endswith("cache_misses=0"):
                    raise SystemExit(f"{model}: not warm: {seconds.last_warm_line}")
                seconds.warm.append(took)
                seconds.floor.append(
                    seconds_until("floor", "-c", FLOOR, str(root / "models" / model / "1"))[0]
                )
    return found


def report(found: dict[str, Seconds], console: Console) -> None:
    table = Table(title="seconds from the start of the process to READY, medians")
    for heading in ("model", "cold", "warm", "floor", "warm / floor", "min-max"):
        table.add_column(heading, justify="right")
    for model, seconds in found.items():
        table.add_row(
            model,
            median(seconds.cold),
            median(seconds.warm),
            median(seconds.floor),
            median(seconds.ratios),
            f"{min(seconds.ratios):.2f}-{max(seconds.ratios):.2f}",
        )
    console.print(table)


def median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="warm starts and floors (default: 5)")
    parser.add_argument("--cold-rounds", type=int, default=1, help="cold starts (default: 1)")
    options = parser.parse_args()
    if options.rounds < 1 or options.cold_rounds < 0:
        parser.error("--rounds needs at least 1, --cold-rounds at least 0")
    console = Console()
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "orbax-checkpoint", "grpcio"))
    console.print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
    )
    with tempfile.TemporaryDirectory() as folder:
        export_models(Path(folder) / "both")
        roots = {model: Path(folder) / model for model in MODELS}
        for model, root in roots.items():
            shutil.move(Path(folder) / "both" / model, root / "models" / model)
        report(measure(roots, options.rounds, options.cold_rounds, console.print), console)
    console.print(
        "floor: importing the server's modules and reading the weights; every warm start had cache_misses=0"
    )


if __name__ == "__main__":
    main()
