"""Text as token ids: its bytes, or what a tokenizer of Hugging Face's library makes of it."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from train_job.data.shards import BYTES, HUGGING_FACE, Tokens, dtype_for
from train_job.errors import EnvironmentUnfit, UsageError, describe_cause


@dataclass(frozen=True)
class Piece:
    """Bytes of a text: `content`, from `offset` of `path` on."""

    path: Path
    offset: int
    content: bytes


class Tokenizer(Protocol):
    """Pieces of text to ids."""

    @property
    def tokens(self) -> Tokens:
        """What the ids mean."""
        ...

    @property
    def json(self) -> bytes:
        """What it can be made of again; empty for bytes."""
        ...

    @property
    def whole_characters(self) -> bool:
        """Whether it takes pieces that begin and end with a character of UTF-8 only."""
        ...

    def encode(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """The ids of each piece, each for itself, as unsigned integers [n]. Raises UsageError for what is no text."""
        ...

    def id_of(self, token: str) -> int:
        """That `--separator` names. Raises UsageError where it names none."""
        ...


class ByteTokenizer:
    """A token for each byte, whatever it means."""

    tokens = Tokens("uint8", 256, BYTES)
    json = b""
    whole_characters = False

    def encode(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """The bytes themselves."""
        return [np.frombuffer(piece.content, np.uint8) for piece in pieces]

    def id_of(self, token: str) -> int:
        """Every byte may be in the text."""
        raise UsageError(
            f"--separator {token!r}: the tokens are bytes, of which none is apart from text; needs a --tokenizer that has it"
        )


class HuggingFaceTokenizer:
    """What a tokenizer.json describes. Nothing is cut off or filled up, whatever it says of lengths."""

    whole_characters = True

    def __init__(self, path: Path) -> None:
        """Raises EnvironmentUnfit where it cannot be read, or the library is missing, UsageError where it is none."""
        library = _library(path)
        try:
            self.json = path.read_bytes()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
                raise UsageError(
                    f"--tokenizer: no file {path}; needs {BYTES}, or a tokenizer.json of Hugging Face's tokenizers"
                ) from None
            raise EnvironmentUnfit(f"--tokenizer: cannot read {path}: {describe_cause(error)}") from error
        try:
            self._tokenizer = library.Tokenizer.from_str(self.json.decode())
        except Exception as error:  # the library raises no narrower one
            raise UsageError(f"--tokenizer {path}: no tokenizer.json ({error})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        size = 1 + max(self._tokenizer.get_vocab().values(), default=-1)  # ids may leave gaps
        if not size:
            raise UsageError(f"--tokenizer {path}: its vocabulary is empty")
        digest = hashlib.sha256(self.json).hexdigest()
        self.tokens = Tokens(dtype_for(size), size, HUGGING_FACE, digest)

    def encode(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """On all cores. Without the tokens that stand before and behind a text."""
        texts = [_text(piece) for piece in pieces]
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(each.ids, np.uint32) for each in encoded]

    def id_of(self, token: str) -> int:
        """As its vocabulary says."""
        found = self._tokenizer.token_to_id(token)
        if found is None:
            added = sorted(each.content for each in self._tokenizer.get_added_tokens_decoder().values())
            raise UsageError(
                f"--separator: the tokenizer has no token {token!r}; those that were added to it are: {', '.join(added) or 'none'}"
            )
        return found


def open_tokenizer(name: str) -> Tokenizer:
    """The tokenizer that `--tokenizer` names: "bytes", or a path. Raises UsageError, EnvironmentUnfit."""
    return ByteTokenizer() if name == BYTES else HuggingFaceTokenizer(Path(name))


def _library(path: Path) -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise EnvironmentUnfit(
            f"--tokenizer {path} needs tokenizers: pip install 'jaxport[tokenizers]'"
        ) from None
    return tokenizers


def _text(piece: Piece) -> str:
    try:
        return piece.content.decode()
    except UnicodeDecodeError as error:
        found = piece.content[error.start]
        raise UsageError(
            f"--text: {piece.path}: the byte 0x{found:02x} at {piece.offset + error.start} is no UTF-8, which a tokenizer "
            f"needs; convert the file, or use --tokenizer {BYTES}"
        ) from None
