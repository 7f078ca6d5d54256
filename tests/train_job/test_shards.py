"""Token shards: text of any size in, every window once an epoch out, and nothing that is damaged or half made."""

from __future__ import annotations

import builtins
import dataclasses
import errno
import hashlib
import io
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from jaxport.cli import main
from tests.once import OncePerRun
from tests.train_job.conftest import VOCABULARY
from train_job import progress
from train_job.data import prepare as preparing
from train_job.data import windows
from train_job.data.prepare import PIECE_BYTES, Preparation, find_text, prepare
from train_job.data.shards import (
    Index,
    check_digests,
    dtype_for,
    read_index,
    read_tokenizer,
    shards_at,
    tokenization_at,
)
from train_job.data.sources import read_files
from train_job.data.text import cut
from train_job.data.windows import ShardData, open_shards, window_order, windows_of
from train_job.errors import CheckFailed, EnvironmentUnfit, UsageError
from train_job.job import train
from train_job.kept import keep
from train_job.presets import Tokenization, preset_of_run
from train_job.settings import TrainSettings
from train_job.tasks.next_token import NextToken

CONTEXT = 16

type Settings = Callable[..., TrainSettings]


def made(folder: Path, text: Path, **flags: Any) -> Index:
    request = Preparation([str(text)], folder, **flags)
    index, written = prepare(request, find_text(request.text))
    assert written
    return index


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def ids_of(folder: Path, part: str) -> np.ndarray:
    """As a program in another language would read them."""
    index = json.loads((folder / "shards.json").read_text())
    dtype = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4"}[index["tokens"]["dtype"]]
    return np.concatenate([np.fromfile(folder / shard["file"], dtype) for shard in index[part]["shards"]])


@pytest.fixture(scope="module")
def shards(once: OncePerRun, text: Path) -> Path:
    """40,000 bytes in files of 7,000. Read only: `copied` is not."""
    return once.folder("shards", lambda folder: made(folder / "of", text, shard_tokens=7000)) / "of"


@pytest.fixture
def copied(shards: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shards, tmp_path / "shards")


@pytest.fixture
def data(shards: Path) -> ShardData:
    return open_shards(shards, CONTEXT)


# What is written


def test_bytes_are_split_in_sequence_as_text_in_memory_is(shards: Path, text: Path) -> None:
    held = cut(read_files(str(text)), CONTEXT)
    np.testing.assert_array_equal(ids_of(shards, "train"), held.train)
    np.testing.assert_array_equal(ids_of(shards, "validation"), held.validation)
    assert [shard.tokens for shard in read_index(shards).train.shards] == [7000] * 5 + [1000]


def test_each_file_gives_its_end_to_the_validation(tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / f"{name}.txt").write_bytes((name * 9 + name.upper()).encode())
    made(tmp_path / "out", tmp_path / "*.txt")
    assert ids_of(tmp_path / "out", "train").tobytes() == b"a" * 9 + b"b" * 9
    assert ids_of(tmp_path / "out", "validation").tobytes() == b"AB"


def test_the_index_says_nothing_of_where_or_when(shards: Path, text: Path, tmp_path: Path) -> None:
    moved = shutil.copy(text, tmp_path / "elsewhere.md")
    assert made(tmp_path / "other", moved, shard_tokens=7000) == read_index(shards)
    assert contents(tmp_path / "other") == contents(shards)
    digest = hashlib.sha256((shards / "shards.json").read_bytes()).hexdigest()
    assert open_shards(shards, CONTEXT).info.sha256 == digest


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [(2, "uint8"), (256, "uint8"), (257, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32")],
)
def test_ids_are_as_small_as_the_vocabulary_allows(vocabulary: int, dtype: str) -> None:
    assert dtype_for(vocabulary) == dtype


def test_a_tokenizer_gives_its_ids_of_all_of_the_text_and_travels_along(
    tokenizer: Path, text: Path, tmp_path: Path
) -> None:
    index = made(tmp_path / "out", text, tokenizer=str(tokenizer))
    assert (index.tokens.vocabulary, index.tokens.dtype) == (VOCABULARY, "uint16")
    kept = tmp_path / "out" / "tokenizer.json"
    assert kept.read_bytes() == tokenizer.read_bytes()
    library = Tokenizer.from_file(str(kept))
    for part, bytes_ in (("train", slice(0, 36_000)), ("validation", slice(36_000, None))):
        assert library.decode(ids_of(tmp_path / "out", part).tolist()).encode() == text.read_bytes()[bytes_]
    assert index.train.bytes == 36_000


def test_pieces_and_parts_are_cut_between_characters(tokenizer: Path, tmp_path: Path) -> None:
    """Of one line that is longer than any piece, and at a cut that is inside of one."""
    line = tmp_path / "line.txt"
    line.write_text("x" + "a\N{EURO SIGN}\N{GRINNING FACE}" * 40_000)
    made(tmp_path / "out", line, tokenizer=str(tokenizer), validation_fraction=0.09999)
    library = Tokenizer.from_file(str(tokenizer))
    whole = np.concatenate([ids_of(tmp_path / "out", part) for part in ("train", "validation")])
    assert library.decode(whole.tolist()) == line.read_text()


def test_text_is_held_in_pieces(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a file is, or a line of it, no read and no piece is longer than this."""
    long = tmp_path / "long.txt"
    long.write_bytes((b"x" * 99 + b"\n") * 3000 + b"y" * 5 * PIECE_BYTES)
    asked: list[int] = []
    opened = Path.open

    def counted(self: Path, *mode: Any, **rest: Any) -> Any:
        stream = opened(self, *mode, **rest)
        return CountingReads(stream, asked) if self == long else stream

    monkeypatch.setattr(Path, "open", counted)
    pieces: list[int] = []
    request = Preparation([str(long)], tmp_path / "out", str(tokenizer))
    prepare(request, find_text(request.text), pieces.append)
    assert max(asked) == PIECE_BYTES and max(pieces) < 2 * PIECE_BYTES
    assert sum(pieces) == long.stat().st_size


class CountingReads:
    def __init__(self, stream: Any, asked: list[int]) -> None:
        self._stream, self._asked = stream, asked

    def read(self, count: int) -> bytes:
        self._asked.append(count)
        return self._stream.read(count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> CountingReads:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()


# What is refused, and what an interruption leaves


@pytest.mark.parametrize(
    ("content", "where"),
    [(b"fine\n\xff\n", "0xff at 5"), (b"a" * 99_999 + b"\xe2\x82" + b"b" * 99, "0xe2 at 99999")],
)
def test_what_is_no_text_is_named_with_its_place(
    content: bytes, where: str, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "odd.txt").write_bytes(content)
    with pytest.raises(UsageError, match=rf"odd\.txt: the byte {where} is no UTF-8"):
        made(tmp_path / "out", tmp_path / "odd.txt", tokenizer=str(tokenizer), validation_fraction=1e-9)
    made(tmp_path / "bytes", tmp_path / "odd.txt")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"validation_fraction": 1.0}, "--validation-fraction: found 1, needs a number between"),
        ({"shard_tokens": 0}, "--shard-tokens: found 0, needs a whole number of at least 1"),
        (
            {"tokenizer": "nowhere.json"},
            r"--tokenizer: no file nowhere\.json; needs bytes, or a tokenizer\.json",
        ),
        ({"tokenizer": __file__}, r"test_shards\.py: no tokenizer\.json \("),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    flags: dict[str, Any], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        made(tmp_path / "out", text, **flags)
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_leaves_the_same_alone_and_refuses_another(
    shards: Path, text: Path, tmp_path: Path
) -> None:
    before = contents(shards)
    same = Preparation([str(text)], shards, shard_tokens=7000)
    index, written = prepare(same, find_text(same.text))
    assert not written and index == read_index(shards)
    other = tmp_path / "other.txt"
    other.write_bytes(text.read_bytes()[::-1])
    for request, differs in (
        (replace(same, text=[str(other)]), "other text"),
        (replace(same, validation_fraction=0.2), "another --validation-fraction"),
        (replace(same, shard_tokens=8000), "another --shard-tokens"),
    ):
        with pytest.raises(UsageError, match=f"holds shards of {differs}; delete it or name another"):
            prepare(request, find_text(request.text))
    with pytest.raises(UsageError, match=r"is there already and holds no shards\.json"):
        made(tmp_path, text)
    assert contents(shards) == before


class Interrupted(BaseException):
    """As SystemExit is, which SIGTERM raises."""


@pytest.mark.parametrize("fault", [Interrupted(), OSError(errno.ENOSPC, "No space left on device")])
def test_what_is_not_finished_is_not_there(
    fault: BaseException, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Any, ids: np.ndarray, text_bytes: int) -> None:
        assert len(list((tmp_path / ".out.unfinished").iterdir())) > 0
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(preparing._Writer, "_end", failing, raising=True)
        patch.setattr(preparing._Writer, "append", failing)
        with pytest.raises((Interrupted, EnvironmentUnfit)) as caught:
            made(tmp_path / "out", text)
    assert list(tmp_path.iterdir()) == []
    if isinstance(fault, OSError):
        assert "out: cannot write: no space left on device; make room" in str(caught.value)


def test_what_a_killed_process_left_is_cleared_and_one_that_lives_is_not(text: Path, tmp_path: Path) -> None:
    left = tmp_path / ".out.unfinished"
    left.mkdir()
    (left / "train-00000.bin").write_bytes(b"half")
    (left / "train-00099.bin").write_bytes(b"half")
    request = Preparation([str(text)], tmp_path / "out")

    def second(_: int) -> None:
        with pytest.raises(EnvironmentUnfit, match="another process is writing it"):
            prepare(request, find_text(request.text))

    prepare(request, find_text(request.text), second)
    assert sorted(contents(tmp_path / "out")) == ["shards.json", "train-00000.bin", "validation-00000.bin"]
    assert not left.exists()


def test_a_file_that_shrinks_is_named(text: Path, tmp_path: Path) -> None:
    (file,) = find_text([str(text)])
    request = Preparation([str(text)], tmp_path / "out")
    with pytest.raises(EnvironmentUnfit, match=r"corpus\.txt: became shorter than the 40,001 bytes"):
        prepare(request, [replace(file, bytes=file.bytes + 1)])
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_the_cure_is_said(
    tokenizer: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "tokenizers":
            raise ModuleNotFoundError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EnvironmentUnfit, match=r"needs tokenizers: pip install 'jaxport\[tokenizers\]'"):
        made(tmp_path / "out", text, tokenizer=str(tokenizer))


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 9.0, 10.0, 11.0, 20.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with progress.bytes_read("preparing", 4_000_000, said := io.StringIO()) as advance:
        for _ in range(4):
            advance(1_000_000)
    assert said.getvalue().splitlines() == ["preparing: 2 of 4 MB", "preparing: 4 of 4 MB"]


def test_on_a_terminal_there_is_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with progress.bytes_read("preparing", 4_000_000, said := Terminal()) as advance:
        advance(4_000_000)
    assert "preparing" in said.getvalue() and "4.0/4.0 MB" in said.getvalue()


# What is damaged


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (Path.unlink, "train-00002.bin", r"train-00002\.bin: is missing; copy it again"),
        (longer, "train-00002.bin", r"found 7,001 bytes, needs 7,000"),
        (shorter, "validation-00000.bin", r"validation-00000\.bin: found 3,999 bytes, needs 4,000"),
        (other, "train-00003.bin", r"train-00003\.bin: found sha256 \w{12}, needs"),
        (other, "shards.json", r"is missing; copy it again"),
        (shorter, "shards.json", r"shards\.json: not as it was written"),
    ],
)
def test_damage_is_found_before_a_step_is_made(
    damage: Callable[[Path], None], file: str, message: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(copied / file)
    with pytest.raises(CheckFailed, match=message):
        open_shards(copied, CONTEXT)
    assert main(["data", "verify", str(copied)]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_of_large_shards_only_sizes_are_looked_at_but_verify_reads_them(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "VERIFIED_BYTES", 39_999)
    other(copied / "train-00003.bin")
    open_shards(copied, CONTEXT)
    with pytest.raises(CheckFailed, match=r"train-00003\.bin: found sha256"):
        check_digests(copied, read_index(copied))


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"tokens": {"dtype": "uint8", "vocabulary": 257, "tokenizer": "bytes", "tokenizer_sha256": ""}},
        {"tokens": {"dtype": "uint8", "vocabulary": 256, "tokenizer": "words", "tokenizer_sha256": ""}},
        {"train": {"bytes": 1, "shards": []}},
        {"train": {"bytes": 1, "shards": [{"file": "../other.bin", "tokens": 1, "sha256": "0" * 64}]}},
        {"train": {"bytes": 1, "shards": [{"file": "a.bin", "tokens": -1, "sha256": "0" * 64}]}},
        {"train": 7},
        {"text": {"files": 1, "bytes": "many", "sha256": ""}},
    ],
)
def test_an_index_that_cannot_be_is_refused(change: dict[str, Any], copied: Path) -> None:
    path = copied / "shards.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change, indent=1) + "\n")
    with pytest.raises((CheckFailed, UsageError), match=r"shards\.json: (no index|schema_version is 2)"):
        read_index(copied)


@pytest.mark.parametrize(
    ("vocabulary", "said"),
    [
        (99_999_999_999, "vocabulary: found 99999999999, needs 1 to 4294967296"),
        ("256", "vocabulary: found '256', needs a whole number"),
        (257, "dtype: found 'uint8', a vocabulary of 257 needs 'uint16'"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_named(vocabulary: Any, said: str, copied: Path) -> None:
    path = copied / "shards.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"tokens": index["tokens"] | {"vocabulary": vocabulary}}))
    with pytest.raises(CheckFailed, match=f"no index of token shards .*{said}"):
        read_index(copied)


@pytest.mark.parametrize("depth", [990, 100_000])
def test_an_index_that_is_nested_too_deep_is_refused(depth: int, copied: Path) -> None:
    path = copied / "shards.json"
    deep = "[" * depth + "]" * depth
    path.write_text(re.sub(r'(?<="shard_tokens": )\d+', deep, path.read_text()))
    with pytest.raises(CheckFailed, match=r"shards\.json: no index"):
        read_index(copied)


def test_a_file_that_is_damaged_later_ends_the_run_where_it_is_read(copied: Path) -> None:
    data = open_shards(copied, CONTEXT)
    (copied / "train-00001.bin").write_bytes(b"")
    data.train.windows([0], 7000)
    with pytest.raises(CheckFailed, match=r"train-00001\.bin: ends at 0 bytes, needs more; copy it again"):
        data.train.windows([6990], 17)
    (copied / "train-00004.bin").unlink()
    with pytest.raises(EnvironmentUnfit, match=r"train-00004\.bin: cannot be read"):
        data.train.windows([28_000], 17)


def test_an_id_that_is_past_the_vocabulary_is_not_trained_on(
    tokenizer: Path, text: Path, tmp_path: Path
) -> None:
    made(tmp_path / "out", text, tokenizer=str(tokenizer))
    data = open_shards(tmp_path / "out", CONTEXT, VOCABULARY)
    with (tmp_path / "out" / "train-00000.bin").open("r+b") as stream:
        stream.write(np.asarray(VOCABULARY, "<u2").tobytes())
    with pytest.raises(CheckFailed, match=r"a token 400 was read, needs one below 400; jaxport data verify"):
        data.train.windows([5, 0], 17)


def test_a_part_that_is_shorter_than_a_window_is_refused_with_both_numbers(shards: Path) -> None:
    with pytest.raises(UsageError, match=r"found 4,000 tokens in the validation part, needs more than 4000"):
        open_shards(shards, 4000)


# The order


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


# Tokens that are not bytes


@pytest.fixture(scope="module")
def of_tokens(once: OncePerRun, text: Path, tokenizer: Path) -> Path:
    return once.folder("of-tokens", lambda folder: made(folder / "of", text, tokenizer=str(tokenizer))) / "of"


def test_the_model_has_as_many_tokens_as_the_text(
    of_tokens: Path, toy_settings: Settings, tmp_path: Path
) -> None:
    bytes_ = toy_settings(tmp_path)
    settings = toy_settings(tmp_path, data=str(of_tokens / "shards.json"))
    tokens = tokenization_at(str(of_tokens))
    assert tokens is not None and tokens.vocabulary == VOCABULARY
    assert (bytes_.preset.model_description()["vocab"], settings.preset.model_description()["vocab"]) == (
        256,
        400,
    )
    assert settings.preset == bytes_.preset.on(tokens) and bytes_.preset.on(None) is bytes_.preset
    data = settings.preset.task.load(settings.data)
    assert data.info.tokens == tokens and data.info.tokenizer == (of_tokens / "tokenizer.json").read_bytes()
    assert data.batch(0, 0, 4)["tokens"].dtype == np.uint16
    assert data.baselines() == {}
    usage = settings.preset.predict_signature.usage
    assert (usage["tokenizer"], usage["tokenizer_sha256"]) == ("huggingface", tokens.sha256)
    assert settings.preset.example_inputs(64, 0)["tokens"].max() > 256
    again = preset_of_run("toy_model:toy", {"tokens": dataclasses.asdict(tokens)})
    assert again == settings.preset
    with pytest.raises(UsageError, match="a vocabulary of 400, and the task has one of 256"):
        bytes_.preset.task.load(str(of_tokens))


def test_bits_are_of_a_byte_of_text_whatever_a_token_is() -> None:
    """2 nats a token of 4 bytes are as good as half a nat a byte."""
    tokens = Tokenization(400, "", train_bytes_per_token=4.0, val_bytes_per_token=2.0)
    found = NextToken(CONTEXT, tokens).report({"train_loss": 2.0, "val_loss": 2.0})
    assert found["train_bits_per_byte"] == pytest.approx(0.5 / math.log(2))
    assert found["val_bits_per_byte"] == pytest.approx(1 / math.log(2))


@pytest.mark.parametrize(
    ("model", "lacks"), [("toy_model:mlp", "MlpConfig of preset toy-digits has no field vocab")]
)
def test_a_model_without_a_vocabulary_is_refused(
    model: str, lacks: str, of_tokens: Path, toy_settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(
        UsageError, match=f"--data: its tokens are those of a tokenizer, 400 of them, and {lacks}"
    ):
        toy_settings(tmp_path, model=model, data=str(of_tokens))


def test_a_tokenizer_that_is_another_is_refused(of_tokens: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(of_tokens, tmp_path / "copied")
    other(copied / "tokenizer.json")
    with pytest.raises(CheckFailed, match=r"tokenizer\.json: found sha256 \w{12}, needs"):
        open_shards(copied, CONTEXT, VOCABULARY)
    with pytest.raises(CheckFailed, match=r"tokenizer\.json: is not the one with sha256"):
        read_tokenizer(copied, read_index(copied).tokens.tokenizer_sha256)


def test_a_run_keeps_its_tokenizer(of_tokens: Path, tmp_path: Path) -> None:
    info = open_shards(of_tokens, CONTEXT, VOCABULARY).info
    assert info.tokens is not None
    for damaged in (None, b"{}"):
        if damaged is not None:
            (tmp_path / "tokenizer.json").write_bytes(damaged)
        keep(tmp_path, info)
        assert read_tokenizer(tmp_path, info.tokens.sha256) == (of_tokens / "tokenizer.json").read_bytes()


# By the command


def test_text_to_shards_to_a_run_that_is_stopped_and_goes_on(
    text: Path,
    toy_settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["data", "prepare", "--text", str(text), "--out", "work/shards"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert (
        "work/shards: 36,000 tokens to train on, 4,000 to validate, of 40,000 bytes in 1 file; vocabulary 256"
        in said
    )
    assert "train on it: jaxport train --preset nano --data work/shards" in said
    assert main(command) == 0
    assert "work/shards: is there, of the same text" in capsys.readouterr().out
    assert main(["data", "verify", "work/shards/shards.json"]) == 0
    taken: list[list[int]] = []
    windows_ = ShardData.windows

    def noted(self: ShardData, *asked: Any) -> list[int]:
        taken.append(windows_(self, *asked))
        return taken[-1]

    monkeypatch.setattr(ShardData, "windows", noted)
    settings = toy_settings(tmp_path, data="work/shards")
    with monkeypatch.context() as patch:
        patch.setenv("STOP_AT", "4")
        assert train(settings) == 75
    data, made_ahead = open_shards(tmp_path / "work/shards", CONTEXT), 3
    before = 3  # two of the rehearsal, and the one that was compiled for
    wanted = [windows_(data, 0, step, 4) for step in range(12)]
    first = taken[before:]
    assert first == wanted[: len(first)] and 5 <= len(first) <= 5 + made_ahead
    taken.clear()
    assert train(toy_settings(tmp_path, data=str(tmp_path / "work/shards/shards.json"))) == 0
    assert taken[before:] == wanted[5:]
    assert shards_at("work") is None
