"""The built-in presets. Each function is a factory as `--model package.module:factory` takes it."""

from __future__ import annotations

from train_job.models.mlp import MlpConfig
from train_job.models.transformer import TransformerConfig
from train_job.presets import Preset
from train_job.settings import Hyperparameters, Upkeep
from train_job.tasks.classification import DigitClassification
from train_job.tasks.next_token import NextToken


def tiny() -> Preset:
    """3,356,160 weights: small enough to read, large enough to be worth an accelerator."""
    model = TransformerConfig(layers=4, d_model=256, heads=4, ffn=1024, context=256)
    return Preset(
        name="tiny",
        model=model,
        task=NextToken(model.context),
        hyper=Hyperparameters(
            steps=5000, batch_size=32, learning_rate=3e-4, weight_decay=1e-4, warmup_steps=100
        ),
        upkeep=Upkeep(eval_every=100, checkpoint_every=500),
    )


def nano() -> Preset:
    """Trains on two CPU cores in about a minute and then predicts better than a byte bigram."""
    model = TransformerConfig(layers=2, d_model=128, heads=4, ffn=512, context=64)
    return Preset(
        name="nano",
        model=model,
        task=NextToken(model.context),
        hyper=Hyperparameters(steps=300, batch_size=32, learning_rate=5e-3, warmup_steps=30, beta2=0.95),
        upkeep=Upkeep(eval_every=25, checkpoint_every=25),
    )


def digits() -> Preset:
    """A classifier of 8 by 8 images: a second kind of model, trained in seconds."""
    return Preset(
        name="digits",
        model=MlpConfig(features=64, hidden=(128, 128), classes=10),
        task=DigitClassification(),
        hyper=Hyperparameters(steps=500, batch_size=64, learning_rate=3e-3, warmup_steps=20),
        upkeep=Upkeep(eval_every=50, checkpoint_every=100),
    )
