"""JSON out of a file that may be damaged."""

from __future__ import annotations

import json
from typing import Any


def parse_json(data: bytes) -> Any:
    """What UTF-8 text says. Raises ValueError where it is no JSON, and where it is nested too deep to be read."""
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None
