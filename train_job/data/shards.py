"""Token shards: the folder that `jaxport data prepare` writes and a run reads, piece by piece, without holding it.

    DIR/shards.json              the index: what the files hold, and their digests
    DIR/train-00000.bin          token ids one after the other, little-endian, and nothing else
    DIR/validation-00000.bin
    DIR/tokenizer.json           a copy of the tokenizer, where it is not that of bytes

The index has neither times nor paths in it: the same text, tokenizer and flags give the same bytes. Its sha256 is that
of the data.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from train_job.data.sources import is_there
from train_job.errors import CheckFailed, EnvironmentUnfit, UsageError, describe_cause
from train_job.json_text import parse_json
from train_job.presets import Tokenization

SCHEMA_VERSION = 1
INDEX = "shards.json"
TOKENIZER = "tokenizer.json"
BYTES = "bytes"
HUGGING_FACE = "huggingface"
DTYPES = ("uint8", "uint16", "uint32")
_BLOCK = 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Shard:
    """One file and what it holds."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """The shards of "train" or "validation", in order. bytes: of the text that they were made of."""

    bytes: int
    shards: tuple[Shard, ...]

    @property
    def tokens(self) -> int:
        """Of all its shards."""
        return sum(shard.tokens for shard in self.shards)


@dataclass(frozen=True)
class Tokens:
    """What the ids mean. dtype: of the files; the smallest that holds `vocabulary`, so that ids are below that.

    tokenizer: "bytes" or "huggingface". tokenizer_sha256: of tokenizer.json; empty for bytes.
    """

    dtype: str
    vocabulary: int
    tokenizer: str
    tokenizer_sha256: str = ""


@dataclass(frozen=True)
class Text:
    """What the shards were made of. sha256: of every file's bytes and size, in order."""

    files: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """`shards.json`. separator: the id behind each file's share of a part; None, and not in the file, without one."""

    tokens: Tokens
    text: Text
    validation_fraction: float
    shard_tokens: int
    train: Part
    validation: Part
    schema_version: int = SCHEMA_VERSION
    separator: int | None = None

    def to_json(self) -> bytes:
        """The bytes of the file."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return (json.dumps(said, indent=1) + "\n").encode()

    @property
    def sha256(self) -> str:
        """Of the file's bytes, and through the digests in it of the data."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Those of both parts."""
        return self.train.shards + self.validation.shards

    def bytes_of(self, shard: Shard) -> int:
        """How long its file is."""
        return shard.tokens * np.dtype(self.tokens.dtype).itemsize


def dtype_for(vocabulary: int) -> str:
    """The smallest of DTYPES that holds ids below `vocabulary`. Raises ValueError where none does."""
    for name in DTYPES:
        if 1 <= vocabulary <= np.iinfo(name).max + 1:
            return name
    raise ValueError(f"vocabulary: found {vocabulary}, needs 1 to {np.iinfo(DTYPES[-1]).max + 1}")


def shards_at(data: str) -> Path | None:
    """The folder of shards that `--data` names, itself or by its index; None where it names none."""
    path = Path(data)
    folder = path.parent if path.name == INDEX else path
    index = folder / INDEX
    return folder if is_there(index) and index.is_file() else None


def tokenization_at(data: str | None) -> Tokenization | None:
    """Of the shards that `--data` names; None where it names none, or their tokens are bytes. Raises as `read_index`."""
    folder = None if data is None else shards_at(data)
    return None if folder is None else tokenization(read_index(folder))


def tokenization(index: Index) -> Tokenization | None:
    """What a run is told of the tokens; None of bytes."""
    if index.tokens.tokenizer == BYTES:
        return None
    return Tokenization(
        index.tokens.vocabulary,
        index.tokens.tokenizer_sha256,
        index.train.bytes / index.train.tokens,
        index.validation.bytes / index.validation.tokens,
    )


def read_tokenizer(folder: Path, sha256: str) -> bytes:
    """The tokenizer.json that lies in a folder of shards or of a run. Raises CheckFailed, EnvironmentUnfit."""
    path = folder / TOKENIZER
    content = _of(path, path.read_bytes)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _damaged(path, f"is not the one with sha256 {sha256[:12]}")
    return content


def read_index(folder: Path) -> Index:
    """Reads `shards.json`.

    Raises:
        EnvironmentUnfit: it cannot be read. UsageError: it is of another version. CheckFailed: it is damaged.
    """
    path = folder / INDEX
    content = _of(path, path.read_bytes)
    try:
        raw = parse_json(content)
        if isinstance(raw, dict) and raw.get("schema_version") != SCHEMA_VERSION:
            raise UsageError(
                f"{path}: schema_version is {raw.get('schema_version')}, this jaxport reads {SCHEMA_VERSION}; "
                "prepare the text again"
            )
        index = _index(raw)
        as_written = index.to_json() == content
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckFailed(
            f"{path}: no index of token shards ({type(error).__name__}: {error}); restore it or prepare the text again"
        ) from error
    if not as_written:
        raise CheckFailed(f"{path}: not as it was written; restore it or prepare the text again")
    return index


def _index(raw: Mapping[str, Any]) -> Index:
    """Raises KeyError, TypeError, ValueError where something is missing or cannot be."""
    index = Index(
        **{
            **raw,
            "tokens": Tokens(**raw["tokens"]),
            "text": Text(**raw["text"]),
            **{name: _part(raw[name]) for name in ("train", "validation")},
        }
    )
    tokens = index.tokens
    if type(tokens.vocabulary) is not int:
        raise ValueError(f"vocabulary: found {tokens.vocabulary!r}, needs a whole number")
    if tokens.dtype != (needed := dtype_for(tokens.vocabulary)):
        raise ValueError(
            f"dtype: found {tokens.dtype!r}, a vocabulary of {tokens.vocabulary} needs {needed!r}"
        )
    if index.separator is not None and not (
        type(index.separator) is int and 0 <= index.separator < tokens.vocabulary
    ):
        raise ValueError(f"separator: found {index.separator!r}, needs an id of the vocabulary")
    if tokens.tokenizer not in (BYTES, HUGGING_FACE):
        raise ValueError(f"tokenizer {tokens.tokenizer!r}")
    if not all(
        isinstance(size, int) and size > 0
        for size in (index.text.bytes, index.train.bytes, index.validation.bytes)
    ):
        raise ValueError("a text without bytes")
    return index


def _part(raw: Mapping[str, Any]) -> Part:
    part = Part(raw["bytes"], tuple(Shard(**shard) for shard in raw["shards"]))
    for shard in part.shards:
        plain = (
            Path(shard.file).name == shard.file
            and shard.file.isprintable()
            and _SHA256.fullmatch(shard.sha256)
        )
        if not plain or not isinstance(shard.tokens, int) or shard.tokens < 1:
            raise ValueError(f"shard {shard}")
    if not part.shards:
        raise ValueError("a part without shards")
    return part


def check_sizes(folder: Path, index: Index) -> None:
    """Whether every file is there and as long as it should be; reads nothing of them.

    Raises:
        CheckFailed: one is missing or of another length. EnvironmentUnfit: the volume does not say.
    """
    for shard in index.shards:
        path, needed = folder / shard.file, index.bytes_of(shard)
        found = _of(path, lambda path=path: path.stat().st_size)
        if found != needed:
            raise _damaged(path, f"found {found:,} bytes, needs {needed:,}")


def check_digests(folder: Path, index: Index, advance: Callable[[int], None] = lambda _: None) -> None:
    """Whether every file holds the very bytes that were written; reads them all. Errors as of `check_sizes`.

    advance: told how many bytes were read.
    """
    check_sizes(folder, index)
    for path, sha256 in _digests(folder, index):
        digest = hashlib.sha256()
        for block in _blocks(path):
            digest.update(block)
            advance(len(block))
        if digest.hexdigest() != sha256:
            raise _damaged(path, f"found sha256 {digest.hexdigest()[:12]}, needs {sha256[:12]}")


def _digests(folder: Path, index: Index) -> Iterator[tuple[Path, str]]:
    if index.tokens.tokenizer_sha256:
        yield folder / TOKENIZER, index.tokens.tokenizer_sha256
    for shard in index.shards:
        yield folder / shard.file, shard.sha256


def _blocks(path: Path) -> Iterator[bytes]:
    with _of(path, lambda: path.open("rb")) as stream:
        while block := _of(path, lambda: stream.read(_BLOCK)):
            yield block


def _of[T](path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except FileNotFoundError:
        raise _damaged(path, "is missing") from None
    except OSError as error:
        raise EnvironmentUnfit(
            f"{path}: cannot be read: {describe_cause(error)}; make it readable for this user"
        ) from error


def _damaged(path: Path, found: str) -> CheckFailed:
    return CheckFailed(f"{path}: {found}; copy it again or prepare the text again")
