"""Text of any size to token shards: what is written, what is refused, and what an interruption leaves."""

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.train_job.conftest import VOCABULARY
from tests.train_job.shards import CONTEXT, contents, ids_of, made
from train_job import progress
from train_job.data import prepare as preparing
from train_job.data.prepare import PIECE_BYTES, Preparation, find_text, prepare
from train_job.data.shards import (
    dtype_for,
    read_index,
)
from train_job.data.sources import read_files
from train_job.data.text import cut
from train_job.data.windows import open_shards
from train_job.errors import EnvironmentUnfit, UsageError
from train_job.settings import TrainSettings

type Settings = Callable[..., TrainSettings]

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


def test_a_separator_stands_behind_what_each_file_gives(tokenizer: Path, tmp_path: Path) -> None:
    """In both parts, as what follows is of another file; of a file without bytes there is nothing to set apart."""
    library = Tokenizer.from_file(str(tokenizer))
    library.add_special_tokens(["<|end|>"])
    library.save(str(tmp_path / "with-end.json"))
    for name, content in (("a", "one " * 9 + "AB"), ("b", ""), ("c", "two " * 9 + "CD")):
        (tmp_path / f"{name}.txt").write_text(content)
    flags = {"tokenizer": str(tmp_path / "with-end.json"), "validation_fraction": 0.05}
    index = made(tmp_path / "out", tmp_path / "*.txt", separator="<|end|>", **flags)
    read = {part: ids_of(tmp_path / "out", part).tolist() for part in ("train", "validation")}
    said = {part: library.decode(ids, skip_special_tokens=False) for part, ids in read.items()}
    assert said == {"train": f"{'one ' * 9}<|end|>{'two ' * 9}<|end|>", "validation": "AB<|end|>CD<|end|>"}
    assert index.separator == VOCABULARY == read["train"][-1]
    assert index.train.bytes == 72, "a separator is no text"
    assert read_index(tmp_path / "out") == index
    for separator in ("", "A"):
        request = Preparation([str(tmp_path / "*.txt")], tmp_path / "out", separator=separator, **flags)
        with pytest.raises(UsageError, match="holds shards of another --separator, or none; delete it"):
            prepare(request, find_text(request.text))
    with pytest.raises(UsageError, match=r"no token '<eos>'; those that were added to it are: <\|end\|>"):
        made(tmp_path / "other", tmp_path / "*.txt", separator="<eos>", **flags)


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
        (
            {"separator": "<eos>"},
            "--separator '<eos>': the tokens are bytes, of which none is apart from text",
        ),
        ({"tokenizer": __file__}, r"test_prepare\.py: no tokenizer\.json \("),
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
