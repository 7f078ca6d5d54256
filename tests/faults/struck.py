"""The toy in a run that says at every moment what it is doing: `--model tests.faults.struck:toy`, see `phases`."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.faults.phases import NOTED, instrument  # the first to be imported
from tests.train_job import toy_model
from train_job.data.text import TextData
from train_job.presets import Preset
from train_job.settings import Upkeep
from train_job.tasks.next_token import NextToken

STEPS = 400
EVERY = 20  # steps between two saves


class StruckNextToken(NextToken):
    """Next-byte prediction whose data are read once the training is imported."""

    def load(self, data: str | None, *rest: Any) -> TextData:
        if NOTED is None:
            return super().load(data, *rest)
        instrument(NOTED)
        with NOTED.during("reading data"):
            return super().load(data, *rest)


def toy() -> Preset:
    made = toy_model.toy()
    return dataclasses.replace(
        made,
        task=StruckNextToken(16),
        hyper=dataclasses.replace(made.hyper, steps=STEPS),
        upkeep=Upkeep(eval_every=EVERY, checkpoint_every=EVERY, keep_latest=2),
    )
