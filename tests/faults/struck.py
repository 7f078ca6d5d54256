"""The toy in a run that says at every moment what it is doing: `--model tests.faults.struck:toy`, see `phases`."""

from __future__ import annotations

from typing import Any

from tests.faults.phases import NOTED, instrument  # the first to be imported
from train_job.models.transformer import TransformerConfig
from train_job.presets import Preset
from train_job.settings import Hyperparameters, Upkeep
from train_job.tasks.next_token import NextToken

STEPS = 400
EVERY = 20  # steps between two saves


class StruckNextToken(NextToken):
    """Next-byte prediction whose data are read once the training is imported."""

    def load(self, data: str | None, *rest: Any) -> Any:
        if NOTED is None:
            return super().load(data, *rest)
        instrument(NOTED)
        with NOTED.during("reading data"):
            return super().load(data, *rest)


def toy() -> Preset:
    """The toy of tests/train_job, without the signals that it sends itself."""
    return Preset(
        name="toy",
        model=TransformerConfig(layers=1, d_model=16, heads=2, ffn=32, context=16),
        task=StruckNextToken(16),
        hyper=Hyperparameters(steps=STEPS, batch_size=4, learning_rate=1e-2, warmup_steps=2),
        upkeep=Upkeep(eval_every=EVERY, checkpoint_every=EVERY, keep_latest=2),
    )
