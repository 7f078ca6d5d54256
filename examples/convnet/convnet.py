"""A small convolutional classifier of handwritten digits: a model that jaxport does not know.

jaxport train --model convnet:digits
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from train_job.data.arrays import ArrayData
from train_job.errors import UsageError
from train_job.presets import Baseline, PredictSignature, Preset, Task
from train_job.settings import Hyperparameters, Upkeep

CLASSES = 10


@dataclass(frozen=True)
class ConvnetConfig:
    """The sizes that a run cannot change: they are part of its fingerprint."""

    channels: int = 16

    # For `--mesh tensor=N`, where it is wanted: channels are spread over devices, and summed up by the second layer.
    tensor_parallel: ClassVar = {
        "first.kernel": (None, None, None, "tensor"),
        "first.bias": ("tensor",),
        "norm.*": ("tensor",),
        "second.kernel": (None, None, "tensor", None),
    }

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        return Convnet(self, rngs)


class Convnet(nnx.Module):
    """float32 images [b, 8, 8] -> float32 logits [b, 10]."""

    def __init__(self, config: ConvnetConfig, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, config.channels, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(config.channels, rngs=rngs)  # its running mean is trained by no gradient
        self.second = nnx.Conv(config.channels, config.channels, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(4 * 4 * config.channels, CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.norm(jax.nn.relu(self.first(images[..., None])))
        x = jax.nn.relu(self.second(x))
        return self.head(x.reshape(x.shape[0], -1))


class Digits(Task):
    """The 1,797 digits that scikit-learn carries; the last 360 are to validate."""

    unit = "images"
    headline = "val_accuracy"

    def load(self, data: str | None) -> ArrayData:
        if data is not None:
            raise UsageError(f"--data: found {data!r}; the digits come with scikit-learn: leave --data out")
        images, labels = read()
        commonest = np.bincount(labels).max() / len(labels)
        return ArrayData.cut(
            "scikit-learn digits",
            {"images": images, "label": labels},
            validation=360,
            unit=self.unit,
            to_beat={"val_accuracy": Baseline("commonest class", float(commonest))},
        )

    def loss(self, module: nnx.Module, batch: dict, rng: jax.Array) -> tuple[jax.Array, dict]:
        logits = module(batch["images"]).astype(jnp.float32)
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return nats.mean(), {"accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == batch["label"])}

    def signature(self) -> PredictSignature:
        return PredictSignature(
            inputs={"images": ("float32", "b, 8, 8")},
            outputs=("logits",),
            usage={"task": "classification", "scale": "grey values from 0 to 1"},
        )

    def example_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        images, _ = read()
        return {"images": images[np.random.default_rng(seed).integers(len(images), size=rows)]}


def read() -> tuple[np.ndarray, np.ndarray]:
    """float32 images [1797, 8, 8] from 0 to 1, int32 labels [1797]."""
    found = load_digits()
    return (found.images / 16).astype(np.float32), found.target.astype(np.int32)


def digits() -> Preset:
    """What `--model convnet:digits` calls."""
    return Preset(
        name="convnet",
        model=ConvnetConfig(),
        task=Digits(),
        hyper=Hyperparameters(steps=300, batch_size=64, learning_rate=3e-3, warmup_steps=20),
        upkeep=Upkeep(eval_every=50, checkpoint_every=100),
    )
