"""Which checkpoints of a run stay, and how the others go.

A folder is deleted file by file, and a process that is killed meanwhile leaves half of it. So a checkpoint first loses
its number, at once and whole, and only then its files: what has a number is complete. Orbax's own retention deletes in
place.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from train_job.runs import sync_directory
from train_job.settings import Upkeep

# Of saves that were not finished: Orbax sweeps away whatever is called so when a run is started.
_UNFINISHED = ".orbax-checkpoint-tmp"


def superfluous(losses: Mapping[int, float | None], upkeep: Upkeep) -> list[int]:
    """The steps that need not stay, ascending.

    losses: by step, the validation loss that the best are chosen by; None of one that was not measured.
    """
    steps = sorted(losses)
    ranked = sorted((loss, step) for step, loss in losses.items() if loss is not None)
    kept = set(steps[-upkeep.keep_latest :]) | {step for _, step in ranked[: upkeep.keep_best]}
    if upkeep.keep_every:
        kept |= {step for step in steps if step % upkeep.keep_every == 0}
    return [step for step in steps if step not in kept]


class Remover:
    """Takes checkpoints away: from sight before `remove` returns, from the disk in the background."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deletions: list[threading.Thread] = []

    def remove(self, steps: Sequence[int]) -> None:
        """Raises OSError where a step cannot be renamed. What cannot be deleted is left to the next start."""
        unnamed = []
        for step in steps:
            with suppress(FileNotFoundError):  # somebody was faster
                there = self._folder / str(step)
                unnamed.append(there.rename(there.with_name(f"{step}{_UNFINISHED}")))
        if not unnamed:
            return
        sync_directory(self._folder)
        deletion = threading.Thread(target=_delete, args=(unnamed,), name="retention", daemon=True)
        self._deletions = [*filter(threading.Thread.is_alive, self._deletions), deletion]
        deletion.start()

    def wait(self) -> None:
        """Returns when the files are gone."""
        for deletion in self._deletions:
            deletion.join()


def _delete(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
