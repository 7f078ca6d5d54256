"""One process at a time does something, whichever pod it is in."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# What flock says on a volume without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def locked(
    path: Path, busy: Callable[[], None] = lambda: None, none: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Holds the lock of the file at `path`, which is made and stays: a lock file that is removed locks nobody out.

    The kernel's lock, and not a file whose being there is the lock: it ends with its process, however that ends, so
    nobody waits for one that was killed. On NFS it is held at the server, for all pods, and goes with the lease of a
    node that died.

    busy: called before waiting for another holder. none: called where the volume has no locks, and nobody is kept out.
    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            none()
        yield
    finally:
        os.close(descriptor)
