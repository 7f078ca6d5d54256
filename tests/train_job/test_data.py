"""Data: the same bytes, the same split, the same batches, everywhere and every time."""

from __future__ import annotations

import hashlib
import http.server
import math
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from train_job.data.digits import read_digits
from train_job.data.draws import draw, spread
from train_job.data.shards import shards_at
from train_job.data.sources import Corpus, cache_dir, fetch, read_corpus, read_stdlib
from train_job.data.text import bigram_bits_per_byte, cut
from train_job.errors import CheckFailed, EnvironmentUnfit, UsageError

CORPUS = Corpus("test", bytes(range(256)) * 20)


def test_a_draw_is_a_pure_function_of_seed_and_step() -> None:
    np.testing.assert_array_equal(draw(1, 5, 8, below=100), draw(1, 5, 8, below=100))
    assert not np.array_equal(draw(1, 5, 8, below=100), draw(1, 6, 8, below=100))
    assert not np.array_equal(draw(1, 5, 8, below=100), draw(2, 5, 8, below=100))


def test_draws_never_change_between_releases() -> None:
    assert draw(0, 0, 4, below=1000).tolist() == [259, 458, 49, 556]
    assert draw(7, 123, 4, below=10**6).tolist() == [743663, 460128, 19179, 271671]


def test_draws_cover_their_range_evenly() -> None:
    counts = np.bincount(draw(0, 0, 100_000, below=10), minlength=10)
    assert counts.min() > 9_600
    assert counts.max() < 10_400


def test_evaluation_positions_reach_from_the_first_to_near_the_last() -> None:
    assert spread(4, below=100).tolist() == [0, 25, 50, 75]


def test_validation_is_the_last_tenth_and_training_never_sees_it() -> None:
    """But for that tenth it sees everything, its very last byte too."""
    data = cut(Corpus("each byte once", bytes(range(200))), context=16)
    assert bytes(data.train) == bytes(range(180))
    assert bytes(data.validation) == bytes(range(180, 200))
    assert set(data.batch(seed=0, step=0, rows=2000)["tokens"].flat) == set(range(180))


def test_a_window_holds_its_inputs_and_one_more_byte() -> None:
    tokens = cut(CORPUS, context=16).batch(seed=0, step=0, rows=4)["tokens"]
    assert tokens.shape == (4, 17)
    assert tokens.dtype == np.uint8
    assert np.all(np.diff(tokens.astype(int), axis=1) % 256 == 1)  # the corpus counts upwards


def test_both_parts_are_evaluated_in_one_shape() -> None:
    data = cut(CORPUS, context=16)
    shapes = {data.evaluation(part)["tokens"].shape for part in ("train", "validation")}
    assert len(shapes) == 1


def test_text_shorter_than_a_window_is_refused_with_the_size_it_needs() -> None:
    with pytest.raises(UsageError, match=r"found 100 bytes, needs at least 170"):
        cut(Corpus("short", b"x" * 100), context=16)


def test_the_bigram_counts_on_train_with_add_one_smoothing() -> None:
    train = np.frombuffer(b"abab", dtype=np.uint8)  # a->b twice, b->a once
    validation = np.frombuffer(b"aba", dtype=np.uint8)
    expected = -(math.log2(3 / 258) + math.log2(2 / 257)) / 2
    assert bigram_bits_per_byte(train, validation) == pytest.approx(expected)


def test_the_standard_library_is_the_same_bytes_each_time_and_enough_of_them() -> None:
    first, again = read_stdlib(), read_stdlib()
    assert first.sha256 == again.sha256
    assert len(first.content) > 4_000_000


def test_the_standard_library_leaves_out_what_is_installed_beside_it() -> None:
    first_module = Path(sysconfig.get_path("stdlib")) / "__future__.py"  # sorted before every other
    content = read_stdlib().content
    assert content.startswith(first_module.read_bytes())
    assert Path(np.__file__).read_bytes() not in content


def test_a_glob_reads_its_files_in_sorted_order(tmp_path: Path) -> None:
    for name, content in (("b.txt", b"second"), ("a.txt", b"first"), ("c.bin", b"not this")):
        (tmp_path / name).write_bytes(content)
    assert read_corpus(str(tmp_path / "*.txt")).content == b"firstsecond"


def test_a_name_with_glob_characters_is_still_a_name(tmp_path: Path) -> None:
    odd = tmp_path / "notes[1].txt"
    odd.write_bytes(b"here")
    assert read_corpus(str(odd)).content == b"here"


def test_a_path_that_is_not_there_is_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"no file matches 'nowhere\.txt'; needs a path, a glob"):
        read_corpus("nowhere.txt")


def test_a_name_that_is_too_long_for_one_is_no_file_and_no_folder_of_shards() -> None:
    with pytest.raises(UsageError, match=r"--data: no file matches 'n{256}'; needs"):
        read_corpus("n" * 256)
    assert shards_at("n" * 256) is None


def test_digits_are_split_in_their_order() -> None:
    data = read_digits()
    assert len(data.train["label"]) + len(data.validation["label"]) == 1797
    assert data.train["pixels"].max() <= 1.0
    assert data.baselines()["val_accuracy"].value < 0.15


DOCUMENT = b"to be or not to be"


class _Counting(http.server.SimpleHTTPRequestHandler):
    requests = 0
    promised = len(DOCUMENT)

    def do_GET(self) -> None:
        type(self).requests += 1
        self.send_response(200)
        self.send_header("Content-Length", str(type(self).promised))
        self.end_headers()
        self.wfile.write(DOCUMENT)

    def log_message(self, format: str, *args: object) -> None:
        return


DIGEST = hashlib.sha256(DOCUMENT).hexdigest()


@pytest.fixture
def url() -> Iterator[str]:
    """A real HTTP server with one document."""
    _Counting.requests = 0
    with http.server.HTTPServer(("127.0.0.1", 0), _Counting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/input.txt"
        server.shutdown()
        thread.join()


def test_a_download_happens_once(url: str, tmp_path: Path) -> None:
    assert fetch(url, DIGEST, tmp_path / "cache") == b"to be or not to be"
    assert fetch(url, DIGEST, tmp_path / "cache") == b"to be or not to be"
    assert _Counting.requests == 1


def test_a_torn_cache_is_fetched_again(url: str, tmp_path: Path) -> None:
    fetch(url, DIGEST, tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"to be or")
    assert fetch(url, DIGEST, tmp_path) == b"to be or not to be"


def test_other_bytes_than_expected_are_refused_and_not_kept(url: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=rf"gave sha256 {DIGEST}, needs 0000"):
        fetch(url, "0" * 64, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_offline_choice_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match=r"cannot download.*--data stdlib"):
        fetch("http://127.0.0.1:9/input.txt", DIGEST, tmp_path)


def test_a_download_that_ends_too_early_is_said_to(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Counting, "promised", len(DOCUMENT) + 9)
    with pytest.raises(
        EnvironmentUnfit, match=r"cannot download http.*: .*18 bytes read, 9 more expected.*; use"
    ):
        fetch(url, DIGEST, tmp_path)


def test_a_cache_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    kept = tmp_path / f"{DIGEST[:16]}-input.txt"
    kept.symlink_to("/proc/self/mem")  # a file whose first byte nobody can read
    with pytest.raises(EnvironmentUnfit, match=rf"cannot read {kept}.*: input/output error; delete it"):
        fetch("http://127.0.0.1:9/input.txt", DIGEST, tmp_path)


def test_a_cache_that_cannot_be_written_costs_a_download_not_the_run(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_bytes(b"")
    assert fetch(url, DIGEST, blocked / "cache") == b"to be or not to be"
    assert "not cached" in capsys.readouterr().out


def test_the_cache_follows_the_xdg_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "jaxport"
