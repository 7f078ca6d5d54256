"""Token shards as the tests make and read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from train_job.data.prepare import Preparation, find_text, prepare
from train_job.data.shards import (
    Index,
)

CONTEXT = 16


def made(folder: Path, text: Path, **flags: Any) -> Index:
    request = Preparation([str(text)], folder, **flags)
    index, written = prepare(request, find_text(request.text))
    assert written
    return index


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def ids_of(folder: Path, part: str) -> np.ndarray:
    """As a program in another language would read them."""
    index = json.loads((folder / "shards.json").read_text())
    dtype = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4"}[index["tokens"]["dtype"]]
    return np.concatenate([np.fromfile(folder / shard["file"], dtype) for shard in index[part]["shards"]])


def changed(path: Path) -> None:
    """One bit of a file."""
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
