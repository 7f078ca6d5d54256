"""jaxport beside other model servers, in one run on this machine: python -m benchmarks.peers [--only mosec,grpcio ...]

Installs each server into a venv of its own under work/peers, gives all of them the same exported program and weights,
sweeps their settings, and then loads one after the other with h2load, in rounds, with the in-process rate of the same
program in between. Every server is asked for a reply that is compared with the program's before and after each window.
Needs h2load (Debian: nghttp2-client). The load generator shares the cores with the server.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.peers import chart, programs, report
from benchmarks.peers.candidates import CANDIDATES, ROOT, Candidate
from benchmarks.peers.rounds import Comparison, Plan
from benchmarks.peers.sweep import Sweep
from benchmarks.peers.venvs import NotInstallable, Venv, make

OUR_PACKAGES = ("jax", "grpcio", "pygrpc-native", "numpy")
NAMED = ("jax", "numpy", "grpcio", "uvicorn")


def main() -> None:
    options = parsed()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if options.report:
        publish(json.loads(options.report.read_text()), console, docs=options.docs)
        return
    if shutil.which("h2load") is None:
        raise SystemExit("h2load is not installed; Debian and Ubuntu have it in nghttp2-client")
    # The servers are ended also when this process is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    start = time.monotonic()
    result = compared(options, console)
    if options.sweep_only:
        console.print(f"{time.monotonic() - start:.0f} s", highlight=False)
        return
    folder = options.root / "results"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    kept.write_text(json.dumps(result, indent=1))
    publish(result, console, docs=options.docs)
    console.print(f"{time.monotonic() - start:.0f} s; raw figures: {kept}", highlight=False)


def compared(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Everything that was measured, as plain values."""
    wanted = [c for c in CANDIDATES if not options.only or c.name in options.only]
    venvs, missing = installed(wanted, options.root, console)
    plan = Plan(options.concurrency, options.rounds, options.seconds, options.root)
    sweep = None if options.quick else Sweep(options.root, console, again=options.sweep_again)
    models = {}
    for name in options.models:
        console.print(f"{name}: exporting", highlight=False)
        model = programs.export(name, options.root)
        models[name] = Comparison(model, venvs, plan, sweep, console).run(sweep_only=options.sweep_only)
    return {
        "command": "python -m benchmarks.peers " + " ".join(sys.argv[1:]),
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(wanted, venvs),
        "packages": {name: venv.versions for name, venv in venvs.items() if venv},
        "not_installable": missing,
        "models": models,
    }


def installed(
    wanted: list[Candidate], root: Path, console: Console
) -> tuple[dict[str, Venv | None], dict[str, str]]:
    """(name -> its venv, None where it needs none; name -> why there is none)."""
    venvs: dict[str, Venv | None] = {}
    missing: dict[str, str] = {}
    for candidate in wanted:
        try:
            venvs[candidate.name] = make(candidate, root) if candidate.requirements else None
        except NotInstallable as why:
            missing[candidate.name] = str(why)
        console.print(f"{candidate.name}: {missing.get(candidate.name, 'installed')}", highlight=False)
    return venvs, missing


def versions(wanted: list[Candidate], venvs: Mapping[str, Venv | None]) -> dict[str, dict[str, str]]:
    """The packages that a reader wants to know; "packages" in the raw figures has all."""
    found = {"jaxport": {"python": platform.python_version(), **{n: version(n) for n in OUR_PACKAGES}}}
    for candidate in wanted:
        if venv := venvs.get(candidate.name):
            names = [requirement.partition("==")[0] for requirement in candidate.requirements]
            found[candidate.name] = {n: venv.versions[n] for n in [*names, *NAMED] if n in venv.versions}
    return found


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    return f"{os.cpu_count()} cores of {model}, {platform.system()} {platform.release()}"


def publish(result: Mapping[str, Any], console: Console, *, docs: bool) -> None:
    report.show(result, console)
    if not docs:
        return
    page = ROOT / "docs" / "benchmarks.md"
    text = page.read_text()
    for model, cells in result["models"].items():
        chart.draw(cells, model, page.with_name(f"peers-{model}.svg"))
        text = report.between(text, f"peers {model}", report.markdown(result, model))
    page.write_text(text)
    console.print(f"written into {page.relative_to(ROOT)}", highlight=False)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag = parser.add_argument
    names = tuple(candidate.name for candidate in CANDIDATES)
    flag("--only", type=_listed(names), default=(), metavar="NAMES", help=f"some of: {', '.join(names)}")
    flag("--models", type=_listed(tuple(programs.MODELS)), default=tuple(programs.MODELS), metavar="NAMES")
    flag("--concurrency", type=_numbers, default=(1, 8, 64, 256), metavar="N,N", help="default: 1,8,64,256")
    flag("--seconds", type=float, default=3.0, help="of a window, at least (default: 3)")
    flag("--rounds", type=int, default=3, help="default: 3")
    flag("--quick", action="store_true", help="no sweep: the first setting of each")
    flag(
        "--sweep-again",
        action="store_true",
        help="try also the settings that an earlier run has tried",
    )
    flag("--sweep-only", action="store_true", help="only find the best settings, which a later run takes")
    flag("--docs", action="store_true", help="write tables and charts into docs/")
    flag("--report", type=Path, metavar="FILE", help="only show the raw figures of an earlier run again")
    flag("--root", type=Path, default=ROOT / "work" / "peers", help="default: work/peers")
    options = parser.parse_args()
    options.root = options.root.resolve()
    return options


def _listed(known: tuple[str, ...]) -> Any:
    def read(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(","))
        if wrong := [part for part in found if part not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of: {', '.join(known)}")
        return found

    return read


def _numbers(text: str) -> tuple[int, ...]:
    found = tuple(int(part) for part in text.split(","))
    if wrong := [n for n in found if n < 1 or (n > 8 and n % 8)]:
        raise argparse.ArgumentTypeError(f"{wrong[0]} is not up to 8 or a multiple of it")
    return found


if __name__ == "__main__":
    main()
