"""Text to and from a byte-level language model behind Predict, as its bundle's `usage` describes it.

The model is causal and takes a window: the prompt's last bytes stand at its left, and where its length is fixed padding
at its right. The logits at the last byte of the prompt are those of the byte that follows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jaxport.client import Client
from jaxport.errors import NotFit, UsageError


@dataclass(frozen=True)
class TextModel:
    """A served model that continues text; `context` in bytes. fixed: it takes windows of just that length."""

    client: Client
    model: str
    version: int
    input: str
    output: str
    context: int
    fixed: bool

    def logits(self, text: bytes) -> np.ndarray:
        """float32 [256]: how likely each byte is to follow `text`."""
        window = np.frombuffer(text[-self.context :], np.uint8)
        tokens = np.zeros((1, self.context if self.fixed else len(window)), np.int32)
        tokens[0, : len(window)] = window
        outputs = self.client.predict(
            self.model, {self.input: tokens}, version=self.version, outputs=[self.output]
        )
        return outputs[self.output][0, len(window) - 1].astype(np.float32)

    def likely(self, text: bytes, count: int) -> list[tuple[bytes, float]]:
        """The `count` most likely next bytes with their probabilities, most likely first."""
        logits = self.logits(text)
        exponentials = np.exp(logits - logits.max())
        probabilities = exponentials / exponentials.sum()
        best = np.argsort(-probabilities, kind="stable")[:count]
        return [(bytes([int(b)]), float(probabilities[b])) for b in best]

    def continuation(self, text: bytes) -> Iterator[bytes]:
        """The most likely next byte, then the one after it, without end."""
        while True:
            following = bytes([int(np.argmax(self.logits(text)))])
            yield following
            text = text[-self.context :] + following


def open_text_model(client: Client, model: str, version: int = 0, label: str = "") -> TextModel:
    """Asks the server what `model` is. UsageError where it does not continue bytes, NotFit where it does not serve."""
    found = client.model(model, version, label)
    if found.reason and not found.signatures:
        raise NotFit(f"{model} version {found.version} is {found.state}: {found.reason}")
    usage: Mapping[str, str] = found.usage
    if usage.get("task") != "next_token" or usage.get("tokenizer") != "bytes":
        raise UsageError(
            f"--text: {model} version {found.version} is no byte-level language model "
            f"(task {usage.get('task', 'not given')}); pass --input NAME=... instead"
        )
    fixed = not any(signature.lengths for signature in found.signatures if signature.name == "predict")
    # Pinned to the version that described itself: a newer one may arrive between two bytes.
    names = usage["input"], usage["output"]
    return TextModel(client, model, found.version, *names, int(usage["context"]), fixed)
