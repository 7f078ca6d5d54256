"""A training run from its settings to its last checkpoint, in the order things happen."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from typing import Any

from jaxport.devices import NoDevice, find_devices
from train_job.banner import banner
from train_job.checkpoints import Checkpoints
from train_job.compute import Compute
from train_job.device_memory import device_memory
from train_job.errors import EnvironmentUnfit, StorageFailed, TrainError, UsageError, root_cause
from train_job.exporter import Exporter, listening
from train_job.fingerprint import fingerprint, require_same
from train_job.kept import KeptData, keep, kept_data, load_data, shared
from train_job.loop import Loop
from train_job.mesh import Layout, lay_out, said
from train_job.metrics import MetricsLog
from train_job.optimizer import optimizer
from train_job.partition import PartitionRules
from train_job.peers import joined, peers
from train_job.preemption import EXIT_PREEMPTED, Preemption
from train_job.presets import DataInfo, Dataset
from train_job.progress import Quiet, reporter
from train_job.rehearsal import rehearse
from train_job.rows import read_metrics
from train_job.runs import RECORD, RunRecord, read_run, sync_directory, write_run, writing
from train_job.settings import TrainSettings, flag_of
from train_job.state import TrainState, abstract_state, fresh_state
from train_job.steps import compile_programs
from train_job.synced import discard_unsynced
from train_job.usage import Usage
from train_job.weights import skeleton

EXIT_DONE = 0


def train_run(settings: TrainSettings, preemption: Preemption) -> int:
    """What `train_job.job.train` documents, under the signal handling of `preemption`."""
    with preemption.nothing_to_save():
        record = _recorded(settings.run_dir) if settings.resume else None
        kept = kept_data(settings, record)
        data, known = None, kept
        if known is None:
            data = load_data(settings, None)
            known = data.info
        finished = record is not None and _is_finished(settings, record, known)
    # Before the peers are waited for: a process that is started again after the others have ended has none. Before
    # the lock is taken and kept data read: a finished run on a read-only volume, or without them, is a finished run.
    if finished:
        print(f"{settings.run_dir}: finished, {settings.hyper.steps} of {settings.hyper.steps} steps")
        return EXIT_DONE
    with ExitStack() as stack:
        with preemption.nothing_to_save():
            data = data or load_data(settings, kept)
            stack.enter_context(joined(settings.processes))
            _require_device()
            layout = _laid_out(settings)
            layout.require_same(_start(settings, data.info, layout))
            require_even_parts(settings, layout)
            Compute.of(settings.hyper, settings.upkeep).require_applicable(settings.preset.model)
            data = shared(settings, data, layout)
            rehearse(settings, data, layout)
        if settings.processes.first:
            if not settings.resume:
                _move_aside(settings.run_dir)
            stack.enter_context(writing(settings.run_dir))
        return _train_under_lock(settings, data, layout, preemption)


def _train_under_lock(settings: TrainSettings, data: Dataset, layout: Layout, preemption: Preemption) -> int:
    """The part that needs the run's lock, which process 0 holds for all."""
    with preemption.nothing_to_save():
        record = _begin(settings, data) if settings.processes.first else None
        layout.said_by_first(0)  # the others write into the folder that process 0 makes
    with (
        _exporting(settings, record) as exporter,
        Checkpoints(settings.run_dir, settings.upkeep, settings.processes) as checkpoints,
        peers(settings.processes),
        device_memory(),
    ):
        done = _train_to_the_end(settings, data, layout, checkpoints, preemption, exporter, record)
    if done < settings.hyper.steps:
        left = f"saved step {done}" if done else "before the first step"  # between the compile and it
        again = "start again" if settings.resume else "start again without --no-resume"
        print(f"preempted: {left} of {settings.hyper.steps}; {again} to go on")
        return EXIT_PREEMPTED
    if record is not None:
        _finish(settings, data, record)
    layout.said_by_first(done)  # who ends with 0 is not started again: not before the run is marked finished
    return EXIT_DONE


def _train_to_the_end(
    settings: TrainSettings,
    data: Dataset,
    layout: Layout,
    checkpoints: Checkpoints,
    preemption: Preemption,
    exporter: Exporter | None,
    record: RunRecord | None,
) -> int:
    hyper, first = settings.hyper, settings.processes.first
    with preemption.nothing_to_save():
        state, start = _starting_state(settings, layout, checkpoints)
        if first:
            print(banner(settings, data, layout, state, start), flush=True)
        if exporter is not None:
            exporter.step(start)
        if start >= hyper.steps:
            return start
        evaluation = {part: layout.evaluation(data.evaluation(name)) for part, name in _PARTS.items()}
        batch = layout.batch(data, hyper.seed, start)
        programs = compile_programs(
            settings.preset, hyper, settings.upkeep, layout, state, batch, evaluation["val"]
        )
    with _records(settings, start) as log, reporter(start, hyper.steps) if first else Quiet() as shown:
        usage = None
        if record is not None and log is not None:
            usage = Usage.of_run(settings, layout, batch, record.created_at, log.earlier)
        loop = Loop(
            settings, data, layout, evaluation, programs, checkpoints, log, shown, preemption, usage, exporter
        )
        _, done = loop.run(state, start)
    return done


_PARTS = {"train": "train", "val": "validation"}


def _records(settings: TrainSettings, start: int) -> AbstractContextManager[MetricsLog | None]:
    return MetricsLog(settings.run_dir, start) if settings.processes.first else nullcontext()


@contextmanager
def _exporting(settings: TrainSettings, record: RunRecord | None) -> Iterator[Exporter | None]:
    """Of process 0, where --metrics-port asks for it: before the first compile, which takes its time."""
    if record is None or settings.metrics_port is None:
        yield None
        return
    exporter = Exporter(settings.run, settings.run_dir, record.starts, settings.hyper.steps)
    with listening(exporter, settings.metrics_host, settings.metrics_port):
        yield exporter


def _starting_state(
    settings: TrainSettings, layout: Layout, checkpoints: Checkpoints
) -> tuple[TrainState, int]:
    """The last checkpoint's state, or a fresh one."""
    model, transform = settings.preset.model, optimizer(settings.hyper, settings.preset.optimizer)
    abstract = abstract_state(model, transform, layout)
    latest = layout.said_by_first(checkpoints.latest or 0)  # a volume may show the others an older folder
    if not latest:
        return fresh_state(model, transform, settings.hyper.seed, abstract), 0
    wanted: Any = abstract.as_items()
    return TrainState.from_items(checkpoints.restore(latest, wanted), like=abstract), latest


def _laid_out(settings: TrainSettings) -> Layout:
    """The devices as --mesh has them, and before anything is written: UsageError where they or the model do not fit it."""
    model = settings.preset.model
    layout = lay_out(settings.mesh, settings.hyper.batch_size, settings.processes, PartitionRules.of(model))
    if layout.axes["tensor"] > 1:
        structure = skeleton(model)
        layout.weights(structure.abstract, structure.trainable)
    return layout


def _require_device() -> None:
    try:
        find_devices()
    except NoDevice as error:
        raise EnvironmentUnfit(str(error)) from error


def _recorded(run_dir: Path) -> RunRecord | None:
    return read_run(run_dir) if (run_dir / RECORD).exists() else None


def _is_finished(settings: TrainSettings, record: RunRecord, data: DataInfo | KeptData) -> bool:
    """Raises FingerprintMismatch where the run is another than the one asked for."""
    wanted = fingerprint(settings.preset, data.sha256, settings.hyper)
    require_same(settings.run, record.fingerprint, wanted, data.name)
    return record.finished


def _start(settings: TrainSettings, data: DataInfo, layout: Layout) -> dict[str, Any]:
    """What every process is to be started with, under the names a person would use to change it."""
    model = fingerprint(settings.preset, data.sha256, settings.hyper)
    flags = {**dataclasses.asdict(settings.hyper), **dataclasses.asdict(settings.upkeep)}
    return {
        "--root and --run": str(settings.run_dir.resolve()),
        "--no-resume": not settings.resume,
        "--mesh": said(layout.axes),
        "--data": data.source or data.sha256,  # what the former gives may differ: see `shared`
        **{name: value for name, value in model.items() if name.startswith("model.")},
        **{flag_of(key): value for key, value in flags.items()},
    }


def require_even_parts(settings: TrainSettings, layout: Layout) -> None:
    """Raises UsageError unless each part of a step gives every device the same number of rows."""
    rows, parts = layout.batch_rows, settings.hyper.accumulate
    shares = rows // layout.rows.shard_shape((rows,))[0]
    if rows % (shares * parts):
        raise UsageError(
            f"--set accumulate: found {parts}, needs parts of {rows} rows (batch_size) that {shares} devices share "
            f"evenly: a divisor of {rows // shares}"
        )


def _move_aside(run_dir: Path) -> None:
    """Keeps what an earlier run of this name left, under a name that says when it began."""
    record = _recorded(run_dir)
    if record is None:
        return
    stamp = "".join(part for part in record.created_at if part.isalnum())
    names = (
        f"{run_dir.name}.before-{stamp}{suffix}"
        for suffix in chain([""], (f"-{number}" for number in count(2)))
    )
    aside = next(path for name in names if not (path := run_dir.with_name(name)).exists())
    with writing(run_dir):  # not from under a process that writes it
        try:
            run_dir.rename(aside)
            sync_directory(run_dir.parent)
        except OSError as error:
            raise StorageFailed.at(run_dir, error) from error
    print(f"{run_dir}: moved to {aside}")


def _begin(settings: TrainSettings, data: Dataset) -> RunRecord:
    """Writes `run.json` for a new run; for one on disk, checks the fingerprint before anything is read."""
    discard_unsynced(settings.run_dir)
    record, info = _recorded(settings.run_dir), data.info
    wanted = fingerprint(settings.preset, info.sha256, settings.hyper)
    if record is not None:
        require_same(settings.run, record.fingerprint, wanted, info.name)
    keep(settings.run_dir, info)  # first: a record that names a source, or a tokenizer, promises its bytes
    more: dict[str, Any] = {"source": info.source} if info.content is not None else {}
    if info.tokens is not None:
        more["tokens"] = dataclasses.asdict(info.tokens)
    latest = RunRecord(
        run=settings.run,
        preset=settings.preset_name,
        settings={**dataclasses.asdict(settings.hyper), **dataclasses.asdict(settings.upkeep)},
        fingerprint=wanted,
        data={"name": info.name, "sha256": info.sha256, "bytes": info.bytes, **more},
        baselines={name: base.value for name, base in data.baselines().items()},
        versions=_versions(),
        created_at=record.created_at if record else datetime.now(UTC).isoformat(timespec="seconds"),
        starts=(record.starts if record else 0) + 1,
        headline=settings.preset.task.headline,
    )
    write_run(settings.run_dir, latest)
    return latest


def _versions() -> dict[str, str]:
    libraries = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in libraries}}


def _finish(settings: TrainSettings, data: Dataset, record: RunRecord) -> None:
    """Draws the plot, says how it went and, last of all, marks the run finished."""
    from train_job.plot import draw_plot  # matplotlib: no start should wait for it

    rows = read_metrics(settings.run_dir)
    try:
        plot = draw_plot(settings.run_dir, f"{settings.run}: {data.info.name}", rows, data.baselines())
        drawn = os.path.relpath(plot)
    except TrainError:
        raise
    except Exception as error:  # a picture is no reason for a trained run to stay unfinished
        drawn = f"could not be drawn: {root_cause(error)}"
    headline = settings.preset.task.headline
    if rows and headline in rows[-1]:
        baseline = data.baselines().get(headline)
        beside = "" if baseline is None else f" ({baseline.name}: {baseline.value:.3f})"
        print(f"done: {headline} {rows[-1][headline]:.3f}{beside} after {rows[-1]['step']} steps")
    print(f"plot: {drawn}")
    write_run(settings.run_dir, dataclasses.replace(record, finished=True))
