"""Text to and from a language model behind Predict, as its bundle's `usage` describes it.

The model is causal and takes a window: the prompt's last tokens stand at its left, and where its length is fixed padding
at its right. The logits at the last token of the prompt are those of the one that follows.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxport.client import Client
from jaxport.errors import NotFit, UsageError

_BEGUN = (
    "\N{REPLACEMENT CHARACTER}".encode()
)  # what a tokenizer says for a character that lacks its last token


class TextCode(Protocol):
    """Text to tokens and back."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The text of tokens: bytes, as one may end within a character."""
        ...


class BytesCode:
    """Each byte of UTF-8 is a token."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> bytes:
        return bytes(tokens)


class TokenizerCode:
    """Tokens of a tokenizer.json of Hugging Face's library."""

    def __init__(self, path: Path, sha256: str) -> None:
        """UsageError where it is not the model's, NotFit where the library is missing."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(f"--tokenizer {path}: {error.strerror or error}") from None
        if (found := hashlib.sha256(content).hexdigest()) != sha256:
            raise UsageError(
                f"--tokenizer {path}: has sha256 {found[:12]}, the model's {sha256[:12]}; it is the tokenizer.json in the "
                "folder of the bundle"
            )
        try:
            import tokenizers
        except ModuleNotFoundError:
            raise NotFit(f"--tokenizer {path} needs tokenizers: pip install 'jaxport[tokenizers]'") from None
        self._tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> bytes:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False).encode()


@dataclass(frozen=True)
class TextModel:
    """A served model that continues text; `context` in tokens. fixed: it takes windows of just that length."""

    client: Client
    model: str
    version: int
    input: str
    output: str
    context: int
    fixed: bool
    code: TextCode

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float32 [vocabulary]: how likely each token is to follow."""
        window = tokens[-self.context :]
        padded = np.zeros((1, self.context if self.fixed else len(window)), np.int32)
        padded[0, : len(window)] = window
        outputs = self.client.predict(
            self.model, {self.input: padded}, version=self.version, outputs=[self.output]
        )
        return outputs[self.output][0, len(window) - 1].astype(np.float32)

    def likely(self, tokens: Sequence[int], count: int) -> list[tuple[int, float]]:
        """The `count` most likely next tokens with their probabilities, most likely first."""
        logits = self.logits(tokens)
        exponentials = np.exp(logits - logits.max())
        probabilities = exponentials / exponentials.sum()
        best = np.argsort(-probabilities, kind="stable")[:count]
        return [(int(token), float(probabilities[token])) for token in best]

    def continuation(self, tokens: Sequence[int]) -> Iterator[int]:
        """The most likely next token, then the one after it, without end."""
        tokens = list(tokens[-self.context :])
        while True:
            following = int(np.argmax(self.logits(tokens)))
            yield following
            tokens = [*tokens[-self.context :], following]

    def following(self, tokens: Sequence[int], count: int) -> bytes:
        """The text that most likely follows: `count` bytes, or somewhat more where a token is longer than what is left."""
        said, before = list(tokens), len(self.code.decode(tokens))
        text = b""
        for _, token in zip(range(count), self.continuation(tokens), strict=False):
            said.append(token)
            text = self.code.decode(said)[before:]
            if len(text) >= count and not text.endswith(_BEGUN):
                break
        return text


def open_text_model(
    client: Client, model: str, version: int = 0, label: str = "", tokenizer: Path | None = None
) -> TextModel:
    """Asks the server what `model` is. UsageError where it does not continue text, NotFit where it does not serve.

    tokenizer: of a model whose tokens are not bytes.
    """
    found = client.model(model, version, label)
    if found.reason and not found.signatures:
        raise NotFit(f"{model} version {found.version} is {found.state}: {found.reason}")
    if not found.signatures and not found.usage:
        raise NotFit(
            f"{model} version {found.version} is {found.state}: it says what it is once it serves; try again"
        )
    usage: Mapping[str, str] = found.usage
    if usage.get("task") != "next_token" or usage.get("tokenizer") not in ("bytes", "huggingface"):
        raise UsageError(
            f"--text: {model} version {found.version} is no language model "
            f"(task {usage.get('task', 'not given')}); pass --input NAME=... instead"
        )
    code = _code(f"{model} version {found.version}", usage, tokenizer)
    fixed = not any(signature.lengths for signature in found.signatures if signature.name == "predict")
    # Pinned to the version that described itself: a newer one may arrive between two tokens.
    names = usage["input"], usage["output"]
    return TextModel(client, model, found.version, *names, int(usage["context"]), fixed, code)


def _code(named: str, usage: Mapping[str, str], tokenizer: Path | None) -> TextCode:
    if usage["tokenizer"] == "bytes":
        if tokenizer is not None:
            raise UsageError(f"--tokenizer {tokenizer}: {named} is over bytes and takes none; leave it out")
        return BytesCode()
    if tokenizer is None:
        raise UsageError(
            f"--text: {named} is over the tokens of a tokenizer; pass --tokenizer FILE, the tokenizer.json in the folder of "
            "its bundle"
        )
    return TokenizerCode(tokenizer, usage.get("tokenizer_sha256", ""))
