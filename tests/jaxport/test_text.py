"""Text for a model over the tokens of a tokenizer, as predict --text sends it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from jaxport.errors import UsageError
from jaxport.text import open_text_model

WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "\u00c3",
    "\u00a9",
]  # the last two: how ByteLevel writes 0xc3, 0xa9
CONTEXT = 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token for each word, and two that are half a letter; as files of models have it, with a limit of its own."""
    words = Tokenizer(models.BPE({word: number for number, word in enumerate(WORDS)}, [], ignore_merges=True))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(False)]
    )
    words.decoder = decoders.ByteLevel()
    words.enable_truncation(1)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    words.save(str(path))
    return path


class Counting:
    """A model behind a client: after each token comes the next, of WORDS, around."""

    def __init__(self, tokenizer: Path) -> None:
        self.usage = {
            "task": "next_token",
            "tokenizer": "huggingface",
            "input": "tokens",
            "output": "logits",
            "context": str(CONTEXT),
            "tokenizer_sha256": hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
        }
        self.asked: list[list[int]] = []

    def model(self, *named: Any) -> Any:
        return SimpleNamespace(version=1, state="READY", reason="", signatures=[], usage=self.usage)

    def predict(
        self, model: str, inputs: Mapping[str, np.ndarray], version: int, outputs: Sequence[str]
    ) -> Any:
        (tokens,) = inputs["tokens"]
        self.asked.append(tokens.tolist())
        return {"logits": 9 * np.eye(len(WORDS), dtype=np.float32)[(tokens + 1) % len(WORDS)][None]}


def test_text_is_what_its_tokens_say(tokenizer: Path) -> None:
    client: Any = Counting(tokenizer)
    model = open_text_model(client, "counting", tokenizer=tokenizer)
    prompt = model.code.encode("one two")
    assert prompt == [1, 2]
    ((token, probability), *_) = model.likely(prompt, 3)
    assert (token, model.code.decode([token])) == (3, b"three") and probability > 0.9
    assert client.asked == [[1, 2, 0, 0]], "padded on the right"
    assert model.following(prompt, 6) == b"threefour", "of whole tokens, as many as hold so many bytes"
    assert model.following(model.code.encode("five"), 2) == "\u00e9".encode(), "a letter of two tokens"
    long = model.code.encode("zero one two three four")
    model.logits(long)
    assert client.asked[-1] == [1, 2, 3, 4], "the window slides along"


def test_the_tokenizer_has_to_be_the_models_and_to_be_given(tokenizer: Path, tmp_path: Path) -> None:
    client: Any = Counting(tokenizer)
    with pytest.raises(
        UsageError, match="counting version 1 is over the tokens of a tokenizer; pass --tokenizer"
    ):
        open_text_model(client, "counting")
    other = tmp_path / "other.json"
    other.write_bytes(tokenizer.read_bytes() + b"\n")
    with pytest.raises(
        UsageError, match=r"other\.json: has sha256 \w{12}, the model's \w{12}; it is the tokenizer"
    ):
        open_text_model(client, "counting", tokenizer=other)
    with pytest.raises(UsageError, match=r"nowhere\.json: No such file"):
        open_text_model(client, "counting", tokenizer=tmp_path / "nowhere.json")
    client.usage = {**client.usage, "tokenizer": "bytes"}
    with pytest.raises(UsageError, match="counting version 1 is over bytes and takes none; leave it out"):
        open_text_model(client, "counting", tokenizer=tokenizer)
