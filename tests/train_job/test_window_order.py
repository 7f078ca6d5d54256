"""Every window of token shards once an epoch, in an order that never changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.train_job.shards import CONTEXT, ids_of
from train_job.data import windows
from train_job.data.sources import read_files
from train_job.data.text import cut
from train_job.data.windows import ShardData, open_shards, window_order, windows_of
from train_job.errors import CheckFailed
from train_job.settings import TrainSettings

type Settings = Callable[..., TrainSettings]


def batches(data: ShardData, seed: int, steps: range, rows: int) -> list[list[int]]:
    return [data.windows(seed, step, rows) for step in steps]


def test_every_window_comes_once_an_epoch_and_each_epoch_in_an_order_of_its_own(shards: Path) -> None:
    data = open_shards(shards, 128)
    count = windows_of(len(data.train), 128)
    assert count == 281
    rows = 13  # that does not divide it
    seen = [number for batch in batches(data, 3, range(3 * count // rows), rows) for number in batch]
    epochs = [seen[first : first + count] for first in (0, count)]
    assert [Counter(epoch) for epoch in epochs] == [Counter(range(count))] * 2
    assert epochs[0] != epochs[1] != list(range(count)) != epochs[0]
    assert batches(data, 4, range(5), rows) != batches(data, 3, range(5), rows)


@pytest.mark.parametrize("count", [1, 2, 17, 257])
def test_of_any_number_of_windows_each_comes_once(count: int) -> None:
    order = window_order(windows_of(count * CONTEXT + 1, CONTEXT), 5)
    assert sorted(order[position] for position in range(count)) == list(range(count))


def test_numbers_of_windows_that_grain_does_not_shuffle_whole_are_not_asked_of_it() -> None:
    """Of 65,537 it gives one twice and another never."""
    sizes = [2**16, 2**16 + 1, 2**16 + 2, 2**18 + 1]
    assert [windows_of(count * CONTEXT + 1, CONTEXT) for count in sizes] == [2**16, 2**16, 2**16 + 2, 2**18]


def test_seeds_beside_each_other_do_not_share_their_epochs() -> None:
    first, second = window_order(100, 0), window_order(100, 1)
    assert [first[position] for position in range(100, 200)] != [second[position] for position in range(100)]


def test_the_order_never_changes_between_releases(data: ShardData, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data.windows(0, 0, 4) == [0, 894, 2075, 261]
    assert data.windows(7, 1000, 4) == [2042, 1286, 1677, 284]
    window_order.cache_clear()
    monkeypatch.setattr(windows, "_KNOWN", {0: 1})
    with pytest.raises(CheckFailed, match=r"grain [\d.]+ shuffles in another order than grain 0\.2\.18"):
        data.batch(0, 0, 4)


def test_the_order_depends_on_neither_processes_nor_stops(shards: Path) -> None:
    """A batch is a function of (seed, step): whoever asks for part of it, and whatever was asked before."""
    data = open_shards(shards, 128)
    rows, steps = 12, range(60)  # two epochs and more
    alone = batches(data, 3, steps, rows)
    for processes in (2, 4):
        share = rows // processes
        parts = [slice(first, first + share) for first in range(0, rows, share)]
        together = [[n for own in parts for n in data.windows(3, step, rows, own)] for step in steps]
        assert together == alone
    window_order.cache_clear()
    assert batches(data, 3, steps[35:], rows) == alone[35:]


def test_a_window_is_its_tokens_wherever_files_end(data: ShardData, shards: Path) -> None:
    tokens = ids_of(shards, "train")
    chosen = data.windows(1, 0, 2249)  # an epoch, over all seams of the files
    found = data.batch(1, 0, 2249)["tokens"]
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, [tokens[n * CONTEXT : n * CONTEXT + CONTEXT + 1] for n in chosen])
    np.testing.assert_array_equal(data.batch(1, 0, 8, slice(2, 5))["tokens"], found[2:5])


def test_bytes_are_evaluated_and_compared_as_text_in_memory_is(data: ShardData, text: Path) -> None:
    held = cut(read_files(str(text)), CONTEXT)
    for part in ("train", "validation"):
        np.testing.assert_array_equal(data.evaluation(part)["tokens"], held.evaluation(part)["tokens"])
    assert data.baselines() == held.baselines()
