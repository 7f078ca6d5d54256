"""A version appears whole or not at all, and where it is asked for, once.

A number is claimed by an exclusive mkdir of a hidden folder beside it; the bundle is written there, flushed to the
disk, and renamed. Rename alone would replace an empty folder, and two exporters would share one number.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from converters.bundle import MODEL_NAME
from converters.errors import BadSpec, StorageError, VersionTaken
from converters.lock import locked

CLAIM = ".claim-"
EXPORT_LOCK = ".export.lock"


@contextlib.contextmanager
def claimed_version(model_dir: Path, version: int | None) -> Iterator[tuple[int, Path]]:
    """Yields (version, folder to fill); publishes it when the block ends, removes it when the block raises.

    `version` None takes the next free number. VersionTaken: it exists or is being written. StorageError: the volume
    refuses.
    """
    if not MODEL_NAME.fullmatch(model_dir.name):
        raise BadSpec(
            f"model name {model_dir.name!r}: letters, digits, '.', '_' and '-' are allowed; change --name"
        )
    with storage_errors(model_dir):
        model_dir.mkdir(parents=True, exist_ok=True)
        number, claim = _claim_next(model_dir) if version is None else _claim_exact(model_dir, version)
    try:
        with storage_errors(claim):
            yield number, claim
            _flush_tree(claim)
            claim.rename(model_dir / str(number))
            _flush(model_dir)
    except BaseException:  # an interrupt too: whatever ends the export takes its half-written folder along
        shutil.rmtree(claim, ignore_errors=True)
        raise


def find_or_publish(
    model_dir: Path, find: Callable[[], Path | None], publish: Callable[[], Path], say: Callable[[str], None]
) -> tuple[Path, bool]:
    """What `find` finds among the versions, or else what `publish` writes; and whether it was written.

    Looking and writing are one step: of all that do this for a model at the same time one writes, and the others wait
    and find what it wrote. Readers and other writers wait for nobody. StorageError: the volume refuses.
    """
    if there := find():  # without the lock, so that a volume that is read-only is read
        return there, False
    with contextlib.ExitStack() as held:
        with storage_errors(model_dir):
            model_dir.mkdir(parents=True, exist_ok=True)
            held.enter_context(
                locked(
                    model_dir / EXPORT_LOCK,
                    busy=lambda: say(f"another export of {model_dir.name} is at work; waiting for it"),
                    none=lambda: say(
                        f"{model_dir}: this volume has no locks; an export beside this one may write the same"
                    ),
                )
            )
        # `find` lists the folder anew: to open it asks NFS's server, whatever was cached before.
        there = find()
        return (there, False) if there else (publish(), True)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns what the file system raises into a StorageError that names the path."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{error.filename or path}: {error.strerror or error}; free or mount the volume"
        ) from error


def _claim_next(model_dir: Path) -> tuple[int, Path]:
    while True:
        number = max(_numbers(model_dir), default=0) + 1
        with contextlib.suppress(VersionTaken):
            return _claim_exact(model_dir, number)


def _claim_exact(model_dir: Path, version: int) -> tuple[int, Path]:
    if version < 1:
        raise BadSpec(f"version {version}: a positive integer is needed, or 'next'; change --version")
    final, claim = model_dir / str(version), model_dir / f"{CLAIM}{version}"
    try:
        claim.mkdir()
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        raise VersionTaken(
            f"{final}: another export is writing it; take --version next, or remove {claim} if no export is running"
        ) from None
    # Only the holder of the claim may look: an exporter that read the listing earlier may come this late.
    if os.path.lexists(final):
        claim.rmdir()
        raise VersionTaken(f"{final}: this version exists and is never overwritten; take --version next")
    return version, claim


def _numbers(model_dir: Path) -> list[int]:
    names = (entry.name.removeprefix(CLAIM) for entry in model_dir.iterdir())
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _flush_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _flush(path)
    _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
