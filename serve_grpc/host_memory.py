"""What this machine, or the container it is for us, has left of memory."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path


def free_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that can still be taken: what the machine has, or what a control group leaves, whichever is less.

    None where neither says anything (no Linux).
    """
    found = [*_available(proc), *_left_by_groups(proc, cgroups)]
    return min(found, default=None)


def limit_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes at which the kernel ends a process of ours: the least of the control groups' limits. None without one."""
    limits = [_limit(folder / limit) for folder, limit, _ in _groups(proc, cgroups)]
    return min((limit for limit in limits if limit is not None), default=None)


def _available(proc: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", (proc / "meminfo").read_text(), re.MULTILINE)
        if match:
            yield int(match[1]) * 1024


def _left_by_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    for folder, limit, usage in _groups(proc, cgroups):
        yield from _left(folder, limit, usage)


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, str, str]]:
    """(folder, file of its limit, of its usage) of each group that we are in, from our own up to the root."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers == "":
            root, limit, usage = cgroups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit, usage = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = root / inside.lstrip("/")
        while folder.is_relative_to(root):
            yield folder, limit, usage
            folder = folder.parent


def _left(folder: Path, limit: str, usage: str) -> Iterator[int]:
    allowed = _limit(folder / limit)
    with contextlib.suppress(OSError, ValueError):
        if allowed is not None:
            yield max(0, allowed - int((folder / usage).read_text()) + _reclaimable(folder))


def _limit(file: Path) -> int | None:
    # In a container the path may be the host's; a file that is not there, "max" and an unlimited number say nothing.
    with contextlib.suppress(OSError, ValueError):
        allowed = int(file.read_text())
        return allowed if allowed < 2**60 else None
    return None


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache, which the kernel gives up before anything is killed."""
    with contextlib.suppress(OSError):
        match = re.search(
            r"^(?:total_)?inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE
        )
        if match:
            return int(match[1])
    return 0
