"""The door every model comes through, ours and yours: a factory that returns a `Preset`.

`--preset nano` and `--model package.module:factory` differ only in where the factory's name is looked up.
A Preset joins three things: a model (how to build the module), a task (data, loss, metrics, the shape of a
prediction) and the settings to start from. Nothing else in train_job knows one model from another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from train_job.errors import UsageError
from train_job.settings import Hyperparameters, Upkeep

if TYPE_CHECKING:
    import jax
    import numpy as np
    from flax import nnx

    from train_job.data.sources import Corpus
    from train_job.optimizer import OwnOptimizer

BUILT_IN = {
    "tiny": "train_job.zoo:tiny",
    "nano": "train_job.zoo:nano",
    "digits": "train_job.zoo:digits",
}


@dataclass(frozen=True)
class PredictSignature:
    """What a trained model takes and gives.

    inputs: name -> (dtype, shape), the shape as text with a symbolic batch: ("int32", "b, 256").
    outputs: names, in order. usage: what a client needs to know, all text, for instance task and tokenizer.
    any_length: the inputs where a second dimension "t", of up to `longest`, is left to each request; empty where the
    model takes none. It must then not look behind a position.
    """

    inputs: Mapping[str, tuple[str, str]]
    outputs: tuple[str, ...]
    usage: Mapping[str, str]
    any_length: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    longest: int = 0


class ModelConfig(Protocol):
    """A frozen dataclass that can build its module. Its fields enter the run's fingerprint."""

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """A module with fresh weights, callable on a batch of the task's input."""
        ...


@dataclass(frozen=True)
class Tokenization:
    """What stands for text in a run whose tokens are not bytes, as `run.json` keeps it.

    vocabulary: how many tokens there are. sha256: of the tokenizer.json that made them. Bytes of text that a token
    stands for, on average over either part of the data.
    """

    vocabulary: int
    sha256: str
    train_bytes_per_token: float
    val_bytes_per_token: float


@dataclass(frozen=True)
class DataInfo:
    """Which bytes a run learned from: a name for people, a digest and a size for the fingerprint.

    source: the word of `--data` of a source that can change or vanish by itself, such as "stdlib"; else empty.
    content: its bytes, which the run then keeps, and gives to every later `Task.load`. tokens, tokenizer: of text whose
    tokens are not bytes, and the tokenizer.json, which the run keeps too.
    """

    name: str
    sha256: str
    bytes: int
    train: str  # what the training part holds, in words: "9,030,133 bytes"
    validation: str
    source: str = ""
    content: bytes | None = field(default=None, repr=False)
    tokens: Tokenization | None = None
    tokenizer: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Baseline:
    """A simple predictor's figure on the validation part."""

    name: str  # "byte bigram"
    value: float


class Dataset:
    """Data ready to train on. A batch is a pure function of (seed, step), so a run's position is its step."""

    info: DataInfo  # which bytes these are

    def batch(self, seed: int, step: int, rows: int, own: slice = slice(None)) -> dict[str, np.ndarray]:
        """The global batch of this step: arrays with a leading dimension of `rows`.

        own: which of the rows to return, all by default. Given only where several processes share a batch.
        """
        raise NotImplementedError

    def evaluation(self, part: str) -> dict[str, np.ndarray]:
        """Fixed batches of "train" or "validation", [batches, rows, ...]; both parts in the same shapes."""
        raise NotImplementedError

    def baselines(self) -> dict[str, Baseline]:
        """What a run should beat, under the name of the metric it stands beside, e.g. val_bits_per_byte. By default
        nothing."""
        return {}


class Task:
    """What a model is trained to do, independent of its architecture. A subclass gives the first four methods."""

    unit: str = "rows"  # what a position is called: "tokens", "images"
    headline: str = "val_loss"  # the metric that a run is summed up by, of those of `report`

    def load(self, data: str | None, kept: Corpus | None = None) -> Dataset:
        """Reads the data named by `--data`, or the task's default. Raises UsageError, EnvironmentUnfit.

        kept: what to take in its place. Given only where an earlier load had a `DataInfo.content`: this is it.
        """
        raise NotImplementedError

    def loss(self, module: Any, batch: Mapping[str, jax.Array], rng: jax.Array) -> tuple[jax.Array, dict]:
        """The mean loss to minimise (a float scalar) over the rows of a batch, and further mean metrics (scalars).

        module: in training or in evaluation mode. rng: a key of this step's own, for dropout.
        """
        raise NotImplementedError

    def signature(self) -> PredictSignature:
        """What the trained model takes and gives."""
        raise NotImplementedError

    def example_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        """Realistic inputs of the signature, [rows, ...] each, the same for the same seed, available offline."""
        raise NotImplementedError

    def predict(self, module: Any, inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The outputs of the signature, by name, of a module in evaluation mode. Traced with a symbolic batch.

        By default the module called on the one input, which gives the one output; UsageError where there are more.
        """
        signature = self.signature()
        if len(signature.inputs) != 1 or len(signature.outputs) != 1:
            raise UsageError(
                f"{type(self).__name__}: its signature has {len(signature.inputs)} inputs and "
                f"{len(signature.outputs)} outputs; give it a method predict(module, inputs) that returns the outputs "
                "by name"
            )
        (x,) = inputs.values()
        return {signature.outputs[0]: module(x)}

    def report(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics a person reads: those of "val_*" and "train_*" plus derived ones. By default nothing is added."""
        return dict(metrics)

    def positions(self, rows: int) -> int:
        """How many predictions (tokens, images) a batch of `rows` holds, for throughput. By default one a row."""
        return rows


@dataclass(frozen=True)
class Preset:
    """A model, what it is for, and the settings to start from."""

    name: str
    model: ModelConfig
    task: Task
    hyper: Hyperparameters = field(default_factory=Hyperparameters)
    upkeep: Upkeep = field(default_factory=Upkeep)
    optimizer: OwnOptimizer | None = None  # None: AdamW

    @property
    def predict_signature(self) -> PredictSignature:
        """What the trained model takes and gives."""
        return self.task.signature()

    def predict_fn(
        self,
    ) -> Callable[[Mapping[str, jax.Array], Mapping[str, jax.Array]], dict[str, jax.Array]]:
        """The prediction as a pure function of (flat weights, inputs by name) -> outputs by name.

        Weights are those of `train_job.checkpoints.load_params`. Traces with a symbolic batch.
        """
        from train_job.weights import skeleton

        structure = skeleton(self.model)

        def predict(
            weights: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]
        ) -> dict[str, jax.Array]:
            module = structure.merge(weights)
            module.eval()
            return self.task.predict(module, inputs)

        return predict

    def on(self, tokens: Tokenization | None) -> Preset:
        """This one for text of such tokens; None: of bytes, as it is.

        Raises UsageError unless the model is a dataclass with a field `vocab` and the task one with a field `tokens`.
        """
        if tokens is None:
            return self
        from train_job.guarded import plain, replaced

        for what, field_name in ((self.model, "vocab"), (plain(self.task), "tokens")):
            if not dataclasses.is_dataclass(what) or field_name not in {
                f.name for f in dataclasses.fields(what)
            }:
                raise UsageError(
                    f"--data: its tokens are those of a tokenizer, {tokens.vocabulary:,} of them, and {type(what).__name__} of "
                    f"preset {self.name} has no field {field_name} to be told of them; give it one, or prepare the text "
                    "without --tokenizer"
                )
        model: Any = self.model
        return dataclasses.replace(
            self,
            model=dataclasses.replace(model, vocab=tokens.vocabulary),
            task=replaced(self.task, tokens=tokens),
        )

    def example_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        """Realistic inputs, `rows` of them, the same for the same seed; needs no network."""
        return self.task.example_inputs(rows, seed)

    def model_description(self) -> dict[str, Any]:
        """The model's part of the fingerprint: its class and every field."""
        config: Any = self.model
        return {"kind": type(config).__name__, **asdict(config)}


def get_preset(name: str) -> Preset:
    """Looks up "tiny", or imports "package.module:factory" and calls it.

    Raises:
        UsageError: no such preset, module or factory, or the factory gave something else; OwnCodeFailed where code
        that is not ours raised.
    """
    from train_job.door import preset_from

    if name in BUILT_IN:
        return preset_from(BUILT_IN[name], f"--preset {name}")
    if ":" in name:
        return preset_from(name, f"--model {name}")
    raise UsageError(f"--preset: found {name!r}, needs one of {', '.join(BUILT_IN)}")


def preset_of_run(name: str, data: Mapping[str, Any]) -> Preset:
    """The preset of a run, as it was trained. data: of its record. Raises as `get_preset`, and `Preset.on`."""
    tokens = data.get("tokens")
    return get_preset(name).on(None if tokens is None else Tokenization(**tokens))
