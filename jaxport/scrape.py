"""The few figures of a server's /metrics that a measurement is set beside."""

import re
import urllib.error
import urllib.request
from collections.abc import Mapping

SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([^ ]+)")
SECONDS = 5.0


class Scrape:
    """One reading of /metrics."""

    def __init__(self, text: str) -> None:
        found = (SAMPLE.match(line) for line in text.splitlines())
        self._samples = [(m[1], m[2] or "", float(m[3])) for m in found if m]

    def total(self, name: str, labels: Mapping[str, str] | None = None) -> float | None:
        """Sum of a sample over every label set that has `labels`; None where the server has no such sample."""
        wanted = [f'{key}="{value}"' for key, value in (labels or {}).items()]
        values = [
            v for n, given, v in self._samples if n == name and all(w in given.split(",") for w in wanted)
        ]
        return sum(values) if values else None


def http_address(address: str) -> str:
    """Where the metrics of a server are by default: at port 8501 on the host of its gRPC address."""
    host = "" if address.startswith("unix:") else address.rpartition(":")[0]
    return f"{host or 'localhost'}:8501"


def scrape(address: str) -> Scrape | None:
    """Reads http://ADDRESS/metrics; None where nothing answers there."""
    try:
        # The scheme is ours, the address the user's.
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS) as answer:
            return Scrape(answer.read().decode())
    except (urllib.error.URLError, OSError, ValueError):
        return None


def difference(
    before: Scrape | None, after: Scrape | None, name: str, labels: Mapping[str, str] | None = None
) -> float | None:
    """How much a counter grew; None where either reading lacks it."""
    if before is None or after is None or (end := after.total(name, labels)) is None:
        return None
    # A counter whose first label set appears in between started at zero.
    return end - (before.total(name, labels) or 0.0)
