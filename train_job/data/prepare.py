"""Text of any size to token shards: read, tokenized and written in pieces, and published when all of it is there."""

from __future__ import annotations

import errno
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import batched
from pathlib import Path
from typing import BinaryIO

import numpy as np

from train_job.data.shards import (
    INDEX,
    TOKENIZER,
    Index,
    Part,
    Shard,
    Text,
    check_sizes,
    read_index,
)
from train_job.data.sources import find_files
from train_job.data.text import VALIDATION_FRACTION
from train_job.data.tokenizer import Piece, Tokenizer, open_tokenizer
from train_job.data.unpublished import unpublished
from train_job.errors import EnvironmentUnfit, UsageError, describe_cause

SHARD_TOKENS = 2**28
# A piece is tokenized by itself; so many go to the tokenizer at once, for as many cores. Together they are what is held
# of the text: some 2 MB, and the tokenizer's notes on it, 50 times as much.
PIECE_BYTES = 2**16
_AT_ONCE = 32


@dataclass(frozen=True)
class Preparation:
    """text: paths and globs. tokenizer: "bytes" or a path. validation_fraction: of each file, its end.

    shard_tokens: how many a file holds at most. separator: the tokenizer's token that goes behind each file; "" for none.
    """

    text: Sequence[str]
    out: Path
    tokenizer: str = "bytes"
    validation_fraction: float = VALIDATION_FRACTION
    shard_tokens: int = SHARD_TOKENS
    separator: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.validation_fraction < 1:
            raise UsageError(
                f"--validation-fraction: found {self.validation_fraction:g}, needs a number between 0 and 1"
            )
        if self.shard_tokens < 1:
            raise UsageError(f"--shard-tokens: found {self.shard_tokens}, needs a whole number of at least 1")
        if not self.out.name:
            raise UsageError(f"--out: found {str(self.out)!r}, needs the name of a folder to make")


@dataclass(frozen=True)
class TextFile:
    """A file as it was found. bytes: how long; more that is written to it later does not count."""

    path: Path
    bytes: int


def find_text(patterns: Sequence[str]) -> list[TextFile]:
    """The files that any of `patterns` matches, in sorted order, each once. Raises UsageError, EnvironmentUnfit."""
    paths = sorted({path for pattern in patterns for path in find_files(pattern, "--text")})
    return [TextFile(path, _reading(path, lambda path=path: path.stat().st_size)) for path in paths]


def prepare(
    request: Preparation, files: Sequence[TextFile], advance: Callable[[int], None] = lambda _: None
) -> tuple[Index, bool]:
    """Makes `request.out` of `files`; returns its index, and whether it was written now: one that is there and the same stays.

    advance: told how many bytes of text were read.

    Raises:
        UsageError: `out` is something else, or a file is no text. EnvironmentUnfit: something cannot be read or written.
    """
    tokenizer = open_tokenizer(request.tokenizer)
    separator = tokenizer.id_of(request.separator) if request.separator else None
    if _is_there(request.out):
        return _same(request, tokenizer, separator, files, advance), False
    try:
        with unpublished(request.out) as folder:
            index = _write(folder, request, tokenizer, separator, files, advance)
            (folder / INDEX).write_bytes(index.to_json())
            if tokenizer.json:
                (folder / TOKENIZER).write_bytes(tokenizer.json)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"--out {request.out}: too long for a name; needs a shorter one") from None
        raise EnvironmentUnfit(
            f"--out {request.out}: cannot write: {describe_cause(error)}; make room, make it writable, or name another "
            "folder (nothing was left there)"
        ) from error
    return index, True


def _write(
    folder: Path,
    request: Preparation,
    tokenizer: Tokenizer,
    separator: int | None,
    files: Sequence[TextFile],
    advance: Callable[[int], None],
) -> Index:
    digest, between = TextDigest(), np.array([] if separator is None else [separator], np.uint32)
    with (
        _Writer(folder, "train", tokenizer.tokens.dtype, request.shard_tokens) as train,
        _Writer(folder, "validation", tokenizer.tokens.dtype, request.shard_tokens) as validation,
    ):
        every = (
            (writer, piece)
            for file in files
            for piece, behind in _pieces(file, digest, request.validation_fraction, tokenizer)
            for writer in [validation if behind else train]
        )
        for several in batched(every, _AT_ONCE):
            encoded = tokenizer.encode([piece for _, piece in several])
            for (writer, piece), ids in zip(several, encoded, strict=True):
                writer.append(ids if piece.content else between, len(piece.content))
                advance(len(piece.content))
    for writer in (train, validation):
        if not writer.shards:
            raise UsageError(
                f"--text: {digest.bytes:,} bytes leave nothing for the {writer.name} part; give more text or another "
                "--validation-fraction"
            )
    return Index(
        tokens=tokenizer.tokens,
        text=Text(len(files), digest.bytes, digest.hexdigest()),
        validation_fraction=request.validation_fraction,
        shard_tokens=request.shard_tokens,
        train=Part(train.bytes, tuple(train.shards)),
        validation=Part(validation.bytes, tuple(validation.shards)),
        separator=separator,
    )


class TextDigest:
    """sha256 of the bytes and the size of each file, in order."""

    def __init__(self) -> None:
        self._digest, self.bytes = hashlib.sha256(), 0

    def add(self, content: bytes) -> None:
        """More of a file."""
        self._digest.update(content)
        self.bytes += len(content)

    def end(self, file: TextFile) -> None:
        """A file is over: another cut between two files is another text."""
        self._digest.update(f"\n{file.bytes}\n".encode())

    def hexdigest(self) -> str:
        """Of all so far."""
        return self._digest.hexdigest()


def _pieces(
    file: TextFile, digest: TextDigest, validation_fraction: float, tokenizer: Tokenizer
) -> Iterator[tuple[Piece, bool]]:
    """The pieces of a file, and whether each lies behind the cut: its end, in sequence, is for validation.

    An empty one ends the file's share of a part.
    """
    with _reading(file.path, lambda: file.path.open("rb")) as stream:
        cut = file.bytes - math.ceil(file.bytes * validation_fraction)
        if tokenizer.whole_characters:
            cut = _start_of_character(file, stream, cut)
        for behind, (first, last) in enumerate(((0, cut), (cut, file.bytes))):
            for offset, content in _whole_lines(_blocks(file, stream, first, last, digest), tokenizer):
                yield Piece(file.path, first + offset, content), bool(behind)
            if first < last:
                yield Piece(file.path, last, b""), bool(behind)
    digest.end(file)


def _blocks(file: TextFile, stream: BinaryIO, first: int, last: int, digest: TextDigest) -> Iterator[bytes]:
    left = last - first
    while left:
        block = _reading(file.path, partial(stream.read, min(left, PIECE_BYTES)))
        if not block:
            raise EnvironmentUnfit(
                f"--text: {file.path}: became shorter than the {file.bytes:,} bytes that it had; prepare it again"
            )
        digest.add(block)
        left -= len(block)
        yield block


def _whole_lines(blocks: Iterator[bytes], tokenizer: Tokenizer) -> Iterator[tuple[int, bytes]]:
    """Pieces with their offsets: blocks as they are, or, where characters count, cut behind a line or at least a character.

    A piece is two blocks at most.
    """
    offset, held = 0, b""
    for block in blocks:
        held += block
        end = _last_end(held) if tokenizer.whole_characters else len(held)
        if end:
            yield offset, held[:end]
        offset, held = offset + end, held[end:]
        if len(held) > PIECE_BYTES:  # no text at all: the tokenizer is to say so
            yield offset, held
            offset, held = offset + len(held), b""
    if held:
        yield offset, held


def _last_end(content: bytes) -> int:
    """Behind the last line's end, or, where there is none, before the last character, which may go on."""
    if line := content.rfind(b"\n") + 1:
        return line
    return next((at for at in range(len(content) - 1, -1, -1) if not _continues(content[at])), 0)


def _start_of_character(file: TextFile, stream: BinaryIO, cut: int) -> int:
    """At most three bytes before `cut`: those that UTF-8 lets a character have besides its first."""
    first = max(0, cut - 3)
    stream.seek(first)
    around = _reading(file.path, lambda: stream.read(cut - first + 1))
    stream.seek(0)
    at = next((at for at in range(len(around) - 1, -1, -1) if not _continues(around[at])), cut - first)
    return first + at


def _continues(byte: int) -> bool:
    """Whether it is inside a character of UTF-8 (RFC 3629, section 3)."""
    return byte & 0b1100_0000 == 0b1000_0000


class _Writer:
    """Ids of one part into files of `most` tokens each."""

    def __init__(self, folder: Path, name: str, dtype: str, most: int) -> None:
        self.name, self.bytes = name, 0
        self.shards: list[Shard] = []
        self._folder, self._most = folder, most
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._stream: BinaryIO | None = None

    def append(self, ids: np.ndarray, text_bytes: int) -> None:
        """Unsigned integers [n] below the vocabulary."""
        self.bytes += text_bytes
        while len(ids):
            stream = self._stream or self._begin()
            now = ids[: self._most - self._tokens]
            content = now.astype(self._dtype, copy=False).tobytes()
            stream.write(content)
            self._digest.update(content)
            self._tokens += len(now)
            ids = ids[len(now) :]
            if self._tokens == self._most:
                self._end(stream)

    def _begin(self) -> BinaryIO:
        self._file = f"{self.name}-{len(self.shards):05d}.bin"
        self._stream = (self._folder / self._file).open("wb")
        self._digest, self._tokens = hashlib.sha256(), 0
        return self._stream

    def _end(self, stream: BinaryIO) -> None:
        stream.close()
        self._stream = None
        self.shards.append(Shard(self._file, self._tokens, self._digest.hexdigest()))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._stream is None:
            return
        if kind is None:
            self._end(self._stream)
        else:
            self._stream.close()


def _is_there(out: Path) -> bool:
    """An empty folder is not: it may have been made for this."""
    try:
        return os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir()))
    except OSError as error:
        raise EnvironmentUnfit(f"--out {out}: cannot be read: {describe_cause(error)}") from error


def _same(
    request: Preparation,
    tokenizer: Tokenizer,
    separator: int | None,
    files: Sequence[TextFile],
    advance: Callable[[int], None],
) -> Index:
    """The index that is there, where it is the one that would be written."""
    out = request.out
    if not (out / INDEX).is_file():
        raise UsageError(
            f"--out {out}: is there already and holds no {INDEX}; name a folder that is not there"
        )
    index = read_index(out)
    check_sizes(out, index)
    differs = {
        "another tokenizer": index.tokens != tokenizer.tokens,
        "another --validation-fraction": index.validation_fraction != request.validation_fraction,
        "another --separator, or none": index.separator != separator,
        "another --shard-tokens": index.shard_tokens != request.shard_tokens,
        "other text": index.text.bytes != sum(file.bytes for file in files),
    }
    found = next((name for name, other in differs.items() if other), None)
    if found is None and index.text.sha256 != _digest(files, advance):
        found = "other text"
    if found is not None:
        raise UsageError(f"--out {out}: holds shards of {found}; delete it or name another folder")
    return index


def _digest(files: Sequence[TextFile], advance: Callable[[int], None]) -> str:
    digest = TextDigest()
    for file in files:
        with _reading(file.path, lambda file=file: file.path.open("rb")) as stream:
            for block in _blocks(file, stream, 0, file.bytes, digest):
                advance(len(block))
        digest.end(file)
    return digest.hexdigest()


def _reading[T](path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:
        raise EnvironmentUnfit(f"--text: cannot read {path}: {describe_cause(error)}") from error
