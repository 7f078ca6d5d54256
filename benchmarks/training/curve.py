"""What jaxport train learns, beside a plain loop of the same seed: python -m benchmarks.training.curve --preset tiny \\
--steps 1000 --data tinyshakespeare [--docs]

One after the other, on the same bytes: `jaxport train`, as a person would call it, and benchmarks/training/reference.py.
Both go on from where they were when this is started again. Exits with 1 where jaxport's last validation loss is more
than --tolerance above the reference's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.peers.report import between
from benchmarks.training.machine import processor
from benchmarks.training.reference import train
from train_job.presets import get_preset
from train_job.rows import read_metrics

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE, EVERY = 0.005, 100
PRESETS = ("nano", "tiny")

type Losses = dict[int, float]  # steps done -> mean validation loss, in nats


def trained(options: argparse.Namespace) -> Losses:
    """By the command. Raises SystemExit where it does not end with 0."""
    command = ["train", "--preset", options.preset, "--run", options.preset, "--root", str(options.root)]
    command += ["--steps", str(options.steps), "--data", options.data]
    command += ["--set", f"eval_every={options.every}", "--set", f"checkpoint_every={options.every}"]
    code = subprocess.run([sys.executable, "-m", "jaxport", *command], check=False).returncode
    if code:
        raise SystemExit(code)
    rows = read_metrics(options.root / "runs" / options.preset)
    return {row["step"]: row["val_loss"] for row in rows}


def referred(options: argparse.Namespace) -> Losses:
    """By the plain loop, each printed as it is known."""
    preset = get_preset(options.preset)
    data = preset.task.load(options.data)
    hyper: Any = dataclasses.replace(preset.hyper, steps=options.steps)
    model: Any = preset.model
    said, kept = options.root / "reference.json", options.root / "reference.npz"
    asked = {"data": data.info.sha256, "model": dataclasses.asdict(model), **dataclasses.asdict(hyper)}
    earlier = json.loads(said.read_text()) if said.exists() else {"asked": asked, "losses": {}}
    if earlier["asked"] != asked:
        raise SystemExit(f"{said} is of other settings or data; pass another --root")
    losses: Losses = {int(step): loss for step, loss in earlier["losses"].items()}
    for step, loss in train(model, hyper, data, options.every, kept):
        losses[step] = loss
        said.write_text(json.dumps({"asked": asked, "losses": losses}))
        print(f"reference: step {step}/{options.steps}  val_loss {loss:.4f}", flush=True)
    return losses


def table(ours: Losses, theirs: Losses) -> list[str]:
    """In Markdown, of up to ten of the steps that both have."""
    steps = sorted(ours.keys() & theirs.keys())
    shown = [step for place, step in enumerate(reversed(steps)) if place % -(-len(steps) // 10) == 0][::-1]
    lines = ["| steps | jaxport train | plain loop | difference |", "| ---: | ---: | ---: | ---: |"]
    return lines + [
        f"| {step} | {ours[step]:.4f} | {theirs[step]:.4f} | {ours[step] / theirs[step] - 1:+.2%} |"
        for step in shown
    ]


def draw(ours: Losses, theirs: Losses, title: str, file: Path) -> None:
    """Both curves as an SVG."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.plot(list(theirs), list(theirs.values()), label="plain loop", color="#9aa5b1", linewidth=4)
    axes.plot(list(ours), list(ours.values()), label="jaxport train", color="#1f6feb", linewidth=1.6)
    axes.set(xlabel="step", ylabel="validation loss (nats per byte)", title=title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, format="svg", metadata={"Date": None})


def verdict(ours: Losses, theirs: Losses, tolerance: float) -> tuple[bool, str]:
    """Whether the last validation loss is no worse than the reference's, and the sentence that says it."""
    last = max(ours)
    share = ours[last] / theirs[last] - 1
    sentence = (
        f"after {last} steps: jaxport train {ours[last]:.4f}, plain loop {theirs[last]:.4f} ({share:+.2%})"
    )
    return share <= tolerance, sentence


def command(options: argparse.Namespace) -> str:
    """As it is to be typed; a path of --data by its name alone, and what decides nothing left out."""
    words = f"--preset {options.preset} --steps {options.steps} --data {Path(options.data).name}"
    for name, default in (("every", EVERY), ("tolerance", TOLERANCE)):
        if (given := getattr(options, name)) != default:
            words += f" --{name} {given}"
    return f"python -m benchmarks.training.curve {words}"


def document(options: argparse.Namespace, ours: Losses, theirs: Losses, sentence: str) -> None:
    page = ROOT / "docs" / "benchmarks.md"
    picture = page.with_name(f"learning-{options.preset}.svg")
    draw(ours, theirs, f"{options.preset}, {Path(options.data).stem}", picture)
    where = f"{date.today().isoformat()}, {os.cpu_count()} cores of {processor()}, jax {version('jax')}"
    lines = [f"`{command(options)}`, {where}; {sentence}.", "", *table(ours, theirs)]
    lines += ["", f"![validation loss of both]({picture.name})"]
    page.write_text(between(page.read_text(), f"learning {options.preset}", "\n".join(lines)))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training.curve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag = parser.add_argument
    flag("--preset", choices=PRESETS, default="nano")
    flag("--steps", type=int, default=1000)
    flag("--data", default="tinyshakespeare", help="as of jaxport train (default: tinyshakespeare)")
    flag("--every", type=int, default=EVERY, help=f"steps between two evaluations (default: {EVERY})")
    flag("--tolerance", type=float, default=TOLERANCE, help=f"as a share (default: {TOLERANCE})")
    flag("--root", type=Path, help="for what both write (default: work/curve/PRESET)")
    flag("--docs", action="store_true", help="write table and curve into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    options.root = options.root or ROOT / "work" / "curve" / options.preset
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    ours, theirs = trained(options), referred(options)
    good, sentence = verdict(ours, theirs, options.tolerance)
    print("\n".join(table(ours, theirs)))
    print(sentence if good else f"{sentence}: worse than allowed, {options.tolerance:.2%}")
    if options.docs:
        document(options, ours, theirs, sentence)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
