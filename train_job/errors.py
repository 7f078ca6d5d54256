"""Everything that can stop a training run on purpose, each with its exit code and, in its message, the cure.

Messages are one line: the thing, the value found, the value needed, the flag or file to change.
"""

from __future__ import annotations

import errno
import importlib
import re
import traceback
from itertools import dropwhile
from pathlib import Path


class TrainError(Exception):
    """A run that cannot go on; `exit_code` is what the process ends with."""

    exit_code: int = 2


class UsageError(TrainError):
    """A flag, a setting or a name that does not fit; never worth a retry."""

    exit_code = 2


class FingerprintMismatch(UsageError):
    """The run on disk was made from other settings than the ones asked for now."""


class UnknownStep(UsageError):
    """No checkpoint at the step that was asked for."""


class OwnCodeFailed(UsageError):
    """Code that a person brought raised: one line, and below it the traceback, as it is theirs to mend."""

    @classmethod
    def of(cls, what: str, error: BaseException) -> OwnCodeFailed:
        """what: the piece of it that was called, as in "--model convnet:digits: loss of Digits"."""
        first = (str(error).strip() or "no message").splitlines()[0]
        return cls(f"{what} raised {type(error).__name__}: {first}\n{_from_their_code(error)}".rstrip())


def _from_their_code(error: BaseException) -> str:
    """The traceback from where our code called theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    last = max((number for number, frame in enumerate(frames) if frame.filename.startswith(here)), default=-1)
    importing = (str(Path(importlib.__file__).parent), "<frozen")
    kept = list(dropwhile(lambda frame: frame.filename.startswith(importing), frames[last + 1 :]))
    head = "Traceback (most recent call last):\n" if kept else ""
    return "".join(
        [head, *traceback.StackSummary.from_list(kept).format(), *traceback.format_exception_only(error)]
    )


class CheckFailed(TrainError):
    """Something was measured and found wrong: a digest, a loss that is no longer a number."""

    exit_code = 3


class EnvironmentUnfit(TrainError):
    """The machine, not the request, is at fault: a full disk, a read-only volume, a busy run, no network."""

    exit_code = 4


class RunBusy(EnvironmentUnfit):
    """Another process is writing this run."""


class PeerLost(TrainError):
    """Another process of the run is gone, or never came; nothing is wrong here, and a second start goes on."""

    exit_code = 75


class StorageFailed(EnvironmentUnfit):
    """The run folder could not be written."""

    @classmethod
    def at(cls, path: Path, cause: BaseException, intact: str = "") -> StorageFailed:
        """The one line for a write under `path` that failed with `cause`.

        `intact` says what survived, for instance "checkpoint of step 40".
        """
        kept = f"; last good: {intact}" if intact else ""
        why = describe_cause(cause)
        cure = (
            "delete what is not needed on this volume or enlarge it (--set keep_latest=1 keeps fewer checkpoints), "
            "then start the run again; until then every start ends here"
            if why in _FULL
            else "make it writable or choose another --root"
        )
        return cls(f"cannot write {path}: {why}{kept}; {cure}")


_STORAGE_CODES = {
    errno.ENOSPC: "no space left on device",
    errno.EDQUOT: "disk quota exceeded",
    errno.EROFS: "read-only file system",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.EFBIG: "file too large",
    errno.EIO: "input/output error",
    errno.ESTALE: "stale file handle",
    errno.ENOTDIR: "not a directory",
    errno.ENAMETOOLONG: "file name too long",
    errno.ELOOP: "too many levels of symbolic links",
}
_FULL = {_STORAGE_CODES[errno.ENOSPC], _STORAGE_CODES[errno.EDQUOT]}
_TENSORSTORE = re.compile(r"[A-Z_]+: ")
_DETAILS = re.compile(r" \[\w+=")
_LONGEST_CAUSE = 160  # characters: a storage library's status text can run to pages


def describe_cause(cause: BaseException) -> str:
    """Why a write failed, in a few words, however many libraries wrapped the original error."""
    for link in chain(cause):
        if isinstance(link, OSError) and link.errno in _STORAGE_CODES:
            return _STORAGE_CODES[link.errno]
    text = " ".join(str(cause).split()) or type(cause).__name__
    for code, words in _STORAGE_CODES.items():
        # TensorStore reports the operating system's code as text: "... [os_error_code='28']".
        if f"os_error_code='{code}'" in text or words in text.lower():
            return words
    return text[:_LONGEST_CAUSE]


def is_of_storage(error: BaseException) -> bool:
    """Whether a file system refused something, and that is what this error comes from."""
    return any(describe_cause(link) in _STORAGE_CODES.values() for link in chain(error))


def root_cause(error: BaseException) -> str:
    """Why a read failed, in a few words: from the first error, which the libraries above it reword at length."""
    links = [
        link for link in chain(error) if not isinstance(link, StopIteration)
    ]  # of a JSON parser's inside
    first = links[-1] if links else error
    text = describe_cause(first)
    if text in _STORAGE_CODES.values():
        return text
    words = " ".join(str(first).split())
    if _TENSORSTORE.match(words):  # CODE: where "path": where: what [key='details']
        return _DETAILS.split(words)[0].rsplit(": ", 1)[-1][:_LONGEST_CAUSE]
    return f"{type(first).__name__}: {words}"[:_LONGEST_CAUSE]


def chain(error: BaseException | None) -> list[BaseException]:
    """An error and those it was raised from, the latest first."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
