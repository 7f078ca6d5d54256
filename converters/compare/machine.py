"""What a measurement ran on, and what ran beside it."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import jax

CPU_FACTS = Path("/proc/cpuinfo")


def machine_facts(devices: int = 1) -> dict[str, Any]:
    """cpu and device by name, cores that this process may use, versions, and the load average before anything is run.

    devices: how many a run takes.
    """
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "devices": devices,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": installed("jaxlib"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def sentence(machine: Mapping[str, Any]) -> str:
    """The same in one line."""
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("jax", "jaxlib", "tensorflow", "python") if name in machine
    )
    device, count = machine["cpu"], machine.get("devices", 1)
    if machine["platform"] != "cpu":
        device = f"{machine['device']}{f' ({count} of them)' if count > 1 else ''}, {device}"
    elif count > 1:
        device = f"{device}, which simulate {count} devices"
    line = f"{machine['cores']} cores of {device}; {versions}"
    # Half a core of others' work already shows in a median.
    if machine["load_before"] > 0.5:
        line += (
            f"; the load average was {machine['load_before']:g} before it began, so other work ran beside it"
        )
    return line


def _cpu() -> str:
    try:
        lines = CPU_FACTS.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
