"""What a figure was measured on, in words."""

import platform
import sys
from pathlib import Path


def processor() -> str:
    """The model of the processor, such as "AMD EPYC"."""
    text = Path("/proc/cpuinfo").read_text() if sys.platform == "linux" else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
