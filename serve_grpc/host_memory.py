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


def _available(proc: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", (proc / "meminfo").read_text(), re.MULTILINE)
        if match:
            yield int(match[1]) * 1024


def _left_by_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """For each group that we are in, from our own up to the root."""
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
            yield from _left(folder, limit, usage)
            folder = folder.parent


def _left(folder: Path, limit: str, usage: str) -> Iterator[int]:
    # In a container the path may be the host's; a file that is not there, "max" and an unlimited number say nothing.
    with contextlib.suppress(OSError, ValueError):
        allowed, used = int((folder / limit).read_text()), int((folder / usage).read_text())
        if allowed < 2**60:
            yield max(0, allowed - used + _reclaimable(folder))


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache, which the kernel gives up before anything is killed."""
    with contextlib.suppress(OSError):
        match = re.search(
            r"^(?:total_)?inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE
        )
        if match:
            return int(match[1])
    return 0
