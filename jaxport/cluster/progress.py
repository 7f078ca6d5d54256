"""How far a training is, read from the lines that `train_job.progress` prints where there is no terminal."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# step  40/300  train_loss 2.6100  val_loss 2.7000  lr 1.00e-03  12,345 tokens/s
_STEPS = r"(\d{1,18})"
_NUMBER = r"(-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|-?inf)"
_INTERVAL = re.compile(rf"step +{_STEPS}/{_STEPS}  (.*)")
_METRIC = re.compile(rf"\b((?:val|train)_\w+) {_NUMBER}(?!\S)")
# work/runs/tiny: finished, 300 of 300 steps; preempted: saved step 40 of 300; ...
_OF = re.compile(rf"(?:finished, |saved step ){_STEPS} of {_STEPS}\b")
# done: bits_per_byte 2.938 (...) after 300 steps
_DONE = re.compile(rf"done: (\w+) {_NUMBER} .*?after {_STEPS} steps")


@dataclass(frozen=True)
class Progress:
    """metric: the validation loss where there is one."""

    step: int | None = None
    steps: int | None = None
    metric: str = ""
    value: float | None = None


def read_progress(lines: Iterable[str]) -> Progress:
    """What the last lines that say something say."""
    found = Progress()
    for line in lines:
        if interval := _INTERVAL.search(line):
            metrics = _METRIC.findall(interval[3])
            name, value = next(
                (m for m in metrics if m[0].startswith("val_")), metrics[0] if metrics else ("", "nan")
            )
            found = Progress(int(interval[1]), int(interval[2]), name, float(value) if name else None)
        elif done := _DONE.search(line):
            found = Progress(int(done[3]), int(done[3]), done[1], float(done[2]))
        elif steps := _OF.search(line):
            found = Progress(int(steps[1]), int(steps[2]), found.metric, found.value)
    return found
