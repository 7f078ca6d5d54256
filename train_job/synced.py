"""Which checkpoints are on the disk itself, and not only in the memory of a machine that may be taken away.

Orbax gives a checkpoint its number before all of its files are synced. kill -9 does not mind: the kernel writes them
later. Of a machine that goes in between (a Spot node, a power cut) what is left is a numbered folder with empty files.
So the last step that was synced is written down, and a newer one is believed only where it is whole.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from train_job.errors import StorageFailed
from train_job.json_text import parse_json
from train_job.retention import Remover
from train_job.runs import CHECKPOINTS, saved_steps, write_atomically

SYNCED = ".synced"  # in a run's folder
METADATA = "_CHECKPOINT_METADATA"  # of a checkpoint: what Orbax keeps beside the items


def mark_synced(run_dir: Path, step: int) -> None:
    """Every file of this step is on the disk. Raises StorageFailed."""
    write_atomically(run_dir / SYNCED, f"{step}\n".encode())


def discard_unsynced(run_dir: Path) -> None:
    """Takes the number from each step that is newer than the last synced one and not whole; says so.

    For the one writer of a run, before anything else looks at its checkpoints. A run from before this was written down
    keeps all of them. Raises StorageFailed.
    """
    steps = sorted(saved_steps(run_dir))
    last = _last_synced(run_dir)
    if last is None:
        if not steps:
            mark_synced(run_dir, 0)
        return
    lost = [step for step in steps if step > last and not _is_whole(run_dir / CHECKPOINTS / str(step))]
    if not lost:
        return
    remover = Remover(run_dir / CHECKPOINTS)
    try:
        remover.remove(lost)
    except OSError as error:
        raise StorageFailed.at(run_dir / CHECKPOINTS / str(lost[0]), error) from error
    remover.wait()
    left = max((step for step in steps if step not in lost), default=None)
    print(
        f"{run_dir / CHECKPOINTS}: step {', '.join(map(str, lost))} was not all on the disk when its machine stopped; "
        + ("beginning again" if left is None else f"going on from step {left}"),
        flush=True,
    )


def _last_synced(run_dir: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int((run_dir / SYNCED).read_bytes())
    return None


def _is_whole(step: Path) -> bool:
    """No file of a checkpoint is empty; a volume that does not answer says nothing against it."""
    with suppress(OSError):
        if any(path.stat().st_size == 0 for path in step.rglob("*") if path.is_file()):
            return False
        try:
            return isinstance(parse_json((step / METADATA).read_bytes()), dict)
        except (ValueError, FileNotFoundError):
            return False
    return True
