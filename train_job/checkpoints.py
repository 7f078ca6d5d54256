"""The checkpoints of a run, and the one place that knows Orbax.

    <root>/runs/<run>/run.json            what the run is (train_job.runs)
    <root>/runs/<run>/checkpoints/<step>/ items params, optimizer, rng, position, each a flat dict of string keys

A checkpoint appears and disappears whole: Orbax writes a temporary sibling and renames it, `retention` renames it back.
Readers (`read_run`, `list_steps`, `choose_step`, `load_params`) take no lock and write nothing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
from orbax.checkpoint import v1 as ocp

from train_job.damage import ORBAX_LOG, Unreadable, file_names, is_vanishing, reading, without_late_answers
from train_job.errors import CheckFailed, StorageFailed, UnknownStep, root_cause
from train_job.json_text import parse_json
from train_job.presets import preset_of_run
from train_job.processes import ALONE, Processes
from train_job.retention import Remover, superfluous
from train_job.runs import CHECKPOINTS, RunRecord, read_run, saved_steps, sync_directory, sync_tree
from train_job.settings import Upkeep
from train_job.synced import METADATA, mark_synced
from train_job.weights import skeleton

__all__ = ["Checkpoints", "RunRecord", "StepInfo", "choose_step", "list_steps", "load_params", "read_run"]

_RANKED_BY = "val_loss"
_SHARED_WRITE_BYTES = 1 << 20  # by each of the devices that hold the same array

type Items = Mapping[str, Mapping[str, jax.Array]]
type Abstract = Mapping[str, Mapping[str, jax.ShapeDtypeStruct]]


@dataclass(frozen=True)
class StepInfo:
    """One checkpoint: the steps done, and what was measured there (empty when a signal forced the save).

    unreadable: why its metrics cannot be read, where they cannot.
    """

    step: int
    metrics: dict[str, float]
    unreadable: str = ""


def _directory(run_dir: Path) -> Path:
    """Orbax refuses relative paths, with a warning where an error is due."""
    return (run_dir / CHECKPOINTS).absolute()


def list_steps(run_dir: Path) -> list[StepInfo]:
    """The complete checkpoints of a run, ascending by step.

    One that is there and cannot be read is listed as well: an older one in its place would be another model.
    """
    found = []
    for step in sorted(saved_steps(run_dir)):
        path = _directory(run_dir) / str(step)
        try:
            found.append(StepInfo(step, _recorded_metrics(path)))
        except (OSError, ValueError, AttributeError) as error:  # the last of JSON that is no object
            if path.is_dir():  # else retention was faster
                found.append(StepInfo(step, {}, root_cause(error)))
    return found


def choose_step(run_dir: Path, which: str | int) -> StepInfo:
    """The checkpoint that "latest", "best" (smallest validation loss) or a step number names.

    Raises:
        UnknownStep: there is none; the message lists those there are. CheckFailed: which is the best cannot be known,
        as the metrics of one cannot be read.
    """
    steps = list_steps(run_dir)
    ranked = [info for info in steps if _RANKED_BY in info.metrics]
    if which == "latest" and steps:
        return steps[-1]
    for info in steps:
        if which == "best" and info.unreadable:
            unreadable = Unreadable(_directory(run_dir) / str(info.step), info.unreadable)
            raise unreadable.explained(_others(run_dir, info.step))
    if which == "best" and ranked:
        return min(ranked, key=lambda info: info.metrics[_RANKED_BY])
    for info in steps:
        if str(info.step) == str(which):
            return info
    present = ", ".join(str(info.step) for info in steps) or "none yet"
    raise UnknownStep(
        f"--step: found {which!r}, needs latest, best or a step of run {run_dir.name!r}: {present}"
    )


def _others(run_dir: Path, step: int) -> list[int]:
    return [info.step for info in list_steps(run_dir) if info.step != step]


def load_params(run_dir: Path, step: int) -> dict[str, jax.Array]:
    """The weights at a step by flat key ("blocks.0.attn.query.kernel"), as the run's preset shapes them.

    Raises:
        UsageError: no such run. UnknownStep: no such checkpoint, or one that retention removes meanwhile.
        CheckFailed: it is damaged, or keys, shapes or dtypes differ from the model's. EnvironmentUnfit: no
        permission to read it.
    """
    record = read_run(run_dir)
    preset = preset_of_run(record.preset, record.data)
    path = _directory(run_dir) / str(choose_step(run_dir, step).step)
    before = file_names(path)
    try:
        return _load(path, {"params": skeleton(preset.model).abstract})["params"]
    except Unreadable as error:
        if is_vanishing(path, before):
            raise UnknownStep(
                f"{path}: removed while it was read, by the retention of a run that is training; "
                "choose another --step"
            ) from error
        raise error.explained(_others(run_dir, step)) from error


class Checkpoints:
    """Writes the checkpoints of the run whose lock the caller holds: asynchronous, but never unwatched.

    Of several processes all take part, with the same calls in the same order; process 0 alone needs the lock. A save that failed in the background raises StorageFailed from the next `save`, `raise_if_failed` or `close`.

    seconds, of the last save that was seen complete, empty before: checkpoint_seconds, from its start until then, and
    checkpoint_wait_seconds, those of them that the caller stood still for it.
    """

    def __init__(self, run_dir: Path, upkeep: Upkeep, processes: Processes = ALONE) -> None:
        self._directory = _directory(run_dir)
        self._processes = processes
        self._pending: tuple[int, ocp.AsyncResponse[bool]] | None = None
        self._began, self._held = 0.0, 0.0  # of the save that is under way
        self.seconds: dict[str, float] = {}
        # Typed more loosely: the policies' signatures and the protocol they are passed as differ in one class.
        self._log_level = ORBAX_LOG.level
        ORBAX_LOG.setLevel(logging.CRITICAL)  # its threads log tracebacks of what is raised here in one line
        self._quiet = contextlib.ExitStack()
        self._quiet.enter_context(without_late_answers())
        self._upkeep, self._remover = upkeep, Remover(self._directory)
        # A checkpoint that cannot be read is none of those that may go.
        self._losses = {
            info.step: info.metrics.get(_RANKED_BY) for info in list_steps(run_dir) if not info.unreadable
        }
        every_call: Any = ocp.training.save_decision_policies.FixedIntervalPolicy(1)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._orbax = ocp.training.Checkpointer(
                str(self._directory.absolute()),
                context=_orbax_context(),
                # When to save is the loop's decision; every save() here is forced.
                save_decision_policy=every_call,
                cleanup_tmp_directories=True,  # what a kill in the middle of a save left behind
            )
        except OSError as error:
            raise StorageFailed.at(self._directory, error) from error
        except (
            ValueError
        ) as error:  # of metadata that is JSON, and not what Orbax wrote; it does not say whose
            steps = ", ".join(map(str, sorted(saved_steps(run_dir))))
            raise CheckFailed(
                f"{self._directory}: the {METADATA} of one of the steps {steps} is damaged ({root_cause(error)}); restore "
                "it, remove that step's folder, or start over with --no-resume"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StorageFailed:
            if error is None:  # else the first failure is the one to report
                raise

    @property
    def under_way(self) -> bool:
        """Whether a save is being written in the background."""
        return self._pending is not None and self._orbax.is_saving_in_progress()

    @property
    def latest(self) -> int | None:
        """The newest step that is complete on disk; None before the first save."""
        steps = [found.step for found in self._orbax.checkpoints]
        if self._pending is not None:
            steps = [step for step in steps if step != self._pending[0]]
        return max(steps, default=None)

    def restore(self, step: int, abstract: Abstract) -> dict[str, dict[str, jax.Array]]:
        """The items of a checkpoint, which must have the shapes and dtypes of `abstract`, on the devices it names.

        Raises:
            CheckFailed: it is damaged, or of another model. EnvironmentUnfit: no permission to read it.
        """
        try:
            return _load(self._directory / str(step), abstract)
        except Unreadable as error:
            raise error.explained(_others(self._directory.parent, step)) from error

    def save(self, step: int, items: Items, metrics: Mapping[str, float]) -> None:
        """Starts saving, after the save before it is complete. The arrays are copied before this returns.

        Raises:
            StorageFailed: this save could not start, or the one before failed.
        """
        self.wait()
        self._began, self._held = time.perf_counter(), 0.0
        measured: Any = {name: float(value) for name, value in metrics.items()}
        try:
            response = self._orbax.save_checkpointables_async(
                step,
                {name: dict(values) for name, values in items.items()},
                force=True,
                custom_metadata={"metrics": measured},  # what readers see without a Checkpointer
            )
        except Exception as error:  # Orbax and TensorStore raise a dozen types for one full disk
            raise self._failed(step, error) from error
        self._losses[step] = measured.get(_RANKED_BY)
        self._held = time.perf_counter() - self._began
        if response is not None:
            self._pending = (step, response)

    def raise_if_failed(self) -> None:
        """Without waiting: completes a save that has ended, and raises StorageFailed if it failed."""
        if not self.under_way:
            self.wait()

    def wait(self) -> None:
        """Returns when the last save is complete and synced to the disk. Raises StorageFailed."""
        if self._pending is None:
            return
        step, response = self._pending
        since = time.perf_counter()
        try:
            response.result()
            if self._processes.first:
                sync_tree(self._directory / str(step))
                sync_directory(self._directory)
                mark_synced(self._directory.parent, step)
        except Exception as error:  # as in `save`
            raise self._failed(step, error) from error
        self._pending = None
        if self._processes.first:
            self._retain(step)
        now = time.perf_counter()
        self.seconds = {
            "checkpoint_seconds": now - self._began,
            "checkpoint_wait_seconds": self._held + now - since,
        }

    def close(self) -> None:
        """Waits for the last save and releases Orbax's threads. Raises StorageFailed."""
        try:
            self.wait()
        finally:
            failed, self._pending = self._pending is not None, None
            # After a failure Orbax's own close waits for the same save, and raises the same error again.
            with contextlib.suppress(*([Exception] if failed else [])):
                self._orbax.close()
            self._remover.wait()
            ORBAX_LOG.setLevel(self._log_level)
            self._quiet.close()

    def _retain(self, latest: int) -> None:
        gone = superfluous(self._losses, self._upkeep)
        if not gone:
            return
        try:
            self._remover.remove(gone)
        except OSError as error:
            kept = f"checkpoint of step {latest}"
            raise StorageFailed.at(self._directory / str(gone[0]), error, intact=kept) from error
        for step in gone:
            del self._losses[step]

    def _failed(self, step: int, error: BaseException) -> StorageFailed:
        intact = max(_others(self._directory.parent, step), default=None)
        kept = "no checkpoint yet" if intact is None else f"checkpoint of step {intact}"
        return StorageFailed.at(self._directory / str(step), error, intact=kept)


def _orbax_context() -> ocp.Context:
    context = ocp.Context()
    # Made in the background, a directory that cannot be made (a read-only volume) leaves the writers of its
    # files waiting for it until a timeout of 20 minutes. Made at once, it raises at once.
    context.asynchronous.create_directories_asynchronously = False
    # Copies share the writing of an array, each a slice of it: for a small one, cutting costs more than writing.
    context.array.saving.min_slice_bytes_for_replica_parallel = _SHARED_WRITE_BYTES
    return context


def _recorded_metrics(path: Path) -> dict[str, float]:
    """Past Orbax, to which a file that cannot be read is one that says nothing."""
    metadata = parse_json((path / METADATA).read_bytes())
    return dict((metadata.get("custom_metadata") or {}).get("metrics") or {})


def _load(path: Path, abstract: Abstract) -> dict[str, dict[str, jax.Array]]:
    """Loads exactly `abstract`. Raises CheckFailed (another model's) and Unreadable."""
    try:
        with reading(path):
            return _load_exactly(path, abstract)
    except (CheckFailed, Unreadable):
        raise
    # One truncated file is, by its place, a KeyError, a ValueError, an OSError or a bare Exception of Orbax.
    except Exception as error:
        raise Unreadable(path, root_cause(error)) from error


def _load_exactly(path: Path, abstract: Abstract) -> dict[str, dict[str, jax.Array]]:
    """Orbax would cast another dtype in silence and misname another shape: both are compared before."""
    for item, wanted in abstract.items():
        stored: Any = ocp.metadata(str(path), checkpointable_name=item).metadata
        if stored is None:  # what Orbax makes of metadata that it cannot read
            raise Unreadable(path, f"the metadata of {item} cannot be read")
        _require_equal(path, item, stored, wanted)
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    targets = {
        item: {
            key: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or first)
            for key, leaf in wanted.items()
        }
        for item, wanted in abstract.items()
    }
    # One at a time: of several, those after one that fails are left behind as coroutines that nothing awaits.
    return {
        item: ocp.load_checkpointables(str(path), {item: target})[item] for item, target in targets.items()
    }


def _require_equal(path: Path, item: str, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key in sorted(stored.keys() | wanted.keys()):
        found = _describe(stored.get(key))
        needed = _describe(wanted.get(key))
        if found != needed:
            raise CheckFailed(
                f"{path}: {item} {key!r} is {found}, the model needs {needed}; use the run's own model"
            )


def _describe(leaf: Any) -> str:
    return "absent" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
