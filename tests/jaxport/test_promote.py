"""jaxport promote: labels and policies as files that a server reads."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from converters.errors import StorageError
from converters.labels import Pinned, read_label, read_policy
from converters.promote import promote, rollback
from jaxport.cli import main
from tests.serve_grpc import bundles


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.export_mlp(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def root(bundle: Path, tmp_path: Path) -> Path:
    """work/models/mlp with versions 1, 2 and 3."""
    for version in (1, 2, 3):
        shutil.copytree(bundle, tmp_path / "work" / "models" / "mlp" / str(version))
    return tmp_path / "work"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["promote", *arguments])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_a_label_is_set_moved_and_rolled_back_step_by_step(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--label", "stable", "--root", str(root))
    assert run(capsys, "mlp", "1", *at) == (0, "mlp stable: not set -> 1\n")
    assert run(capsys, "mlp", "2", *at) == (0, "mlp stable: 1 -> 2\n")
    assert run(capsys, "mlp", "2", *at) == (0, "mlp stable: 2, as before\n")
    assert run(capsys, "mlp", "3", *at) == (0, "mlp stable: 2 -> 3\n")
    assert (root / "models/mlp/labels/stable").read_text() == "3\n"
    assert run(capsys, "mlp", "--rollback", *at) == (0, "mlp stable: 3 -> 2\n")
    assert run(capsys, "mlp", "--rollback", *at) == (0, "mlp stable: 2 -> 1\n")
    code, said = run(capsys, "mlp", "--rollback", *at)
    assert code == 2 and "points to version 1 and nothing is known of a version before" in said
    assert read_label(root / "models/mlp", "stable") == 1
    assert run(capsys, "mlp", "3", *at) == (0, "mlp stable: 1 -> 3\n")
    assert run(capsys, "mlp", "--rollback", *at) == (0, "mlp stable: 3 -> 1\n")


def test_a_policy_is_checked_and_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--models", str(root / "models"))
    assert run(capsys, "mlp", "--policy", "latest 2", *at) == (0, "mlp policy: latest 1 -> latest 2\n")
    assert run(capsys, "mlp", "--policy", "pinned 3,1", *at) == (0, "mlp policy: latest 2 -> pinned 1,3\n")
    assert read_policy(root / "models/mlp") == Pinned((1, 3))
    code, said = run(capsys, "mlp", "--policy", "pinned 9", *at)
    assert code == 2 and "no such version; the versions are: 1, 2, 3" in said
    code, said = run(capsys, "mlp", "--policy", "newest", *at)
    assert code == 2 and "'newest' is no policy; needed: 'latest N'" in said
    (root / "models/mlp/policy").write_bytes(b"\xff")
    assert run(capsys, "mlp", "--policy", "latest", *at) == (0, "mlp policy: not set -> latest 1\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("mlp", "9", "--label", "stable"), 2, "no such version; the versions are: 1, 2, 3"),
        (("none", "1", "--label", "stable"), 2, "no such model"),
        (("../models/mlp", "1", "--label", "stable"), 2, "'../models/mlp' is no name"),
        (("mlp", "1", "--label", "../policy"), 2, "--label '../policy'"),
        (("mlp", "1", "--label", ".history"), 2, "--label '.history'"),
        (("mlp", "1", "--label", ""), 2, "--label ''"),
        (("mlp", "1", "--label", "stable", "--policy", "bogus"), 2, "'bogus' is no policy"),
        (("mlp", "1", "--label", "stable", "--policy", "pinned 9"), 2, "no such version"),
        (("mlp", "1"), 2, "--label NAME is needed"),
        (("mlp",), 2, "give VERSION --label NAME"),
        (("mlp", "--label", "stable"), 2, "either a VERSION"),
        (("mlp", "1", "--label", "stable", "--rollback"), 2, "either a VERSION"),
        (("mlp", "--label", "stable", "--rollback"), 2, "has no label 'stable' to roll back"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    arguments: tuple[str, ...], code: int, words: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, said = run(capsys, *arguments, "--root", str(root))
    assert got == code and words in said and said.count("\n") == 1
    assert not (root / "models/mlp/labels").exists()


def test_a_damaged_version_is_not_promoted_and_not_rolled_back_to(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = root / "models/mlp"
    promote(model, 1, "stable")
    promote(model, 3, "stable")
    for version in (1, 2):
        golden = model / str(version) / "golden/predict.npz"
        golden.write_bytes(golden.read_bytes()[:-1])
    for arguments in (("mlp", "2"), ("mlp", "--rollback")):
        code, said = run(capsys, *arguments, "--label", "stable", "--root", str(root))
        assert code == 3 and "golden/predict.npz: altered or damaged" in said
    assert read_label(model, "stable") == 3
    shutil.rmtree(model / "1")
    code, said = run(capsys, "mlp", "--rollback", "--label", "stable", "--root", str(root))
    assert code == 2 and "no such version" in said and read_label(model, "stable") == 3


def test_a_label_that_was_no_version_is_replaced(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "models/mlp/labels").mkdir()
    (root / "models/mlp/labels/stable").write_bytes(os.urandom(99))
    assert run(capsys, "mlp", "2", "--label", "stable", "--root", str(root)) == (
        0, "mlp stable: not set -> 2\n",
    )  # fmt: skip


def test_a_volume_that_refuses_is_exit_code_4(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "models/mlp/labels").write_text("in the way")
    code, said = run(capsys, "mlp", "1", "--label", "stable", "--root", str(root))
    assert code == 4 and "labels: " in said


def test_promotions_at_once_leave_one_of_them_and_all_of_the_history(root: Path) -> None:
    model = root / "models/mlp"
    promote(model, 1, "stable")
    with ThreadPoolExecutor(4) as pool:
        moved = list(pool.map(lambda n: promote(model, n % 3 + 1, "stable"), range(24)))
    now = read_label(model, "stable")
    back = []
    while (model / "labels/.history/stable").read_text():
        before, version = rollback(model, "stable")
        assert before == ([now, *back][-1])
        back.append(version)
    changes = [before for before, n in zip(moved, range(24), strict=True) if before != n % 3 + 1]
    assert sorted(back) == sorted(v for v in changes if v is not None), "each change is in the history once"
    assert sorted(p.name for p in (model / "labels").iterdir()) == [".history", ".lock", "stable"]


def test_a_promotion_that_is_killed_leaves_a_whole_label(root: Path) -> None:
    model = root / "models/mlp"
    promote(model, 1, "stable")
    script = (
        "import sys, itertools; from pathlib import Path; from converters.promote import promote\n"
        "print('go', flush=True)\n"
        "for n in itertools.cycle((2, 3)): promote(Path(sys.argv[1]), n, 'stable')"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(model)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    seen = set()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        seen.add(read_label(model, "stable"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert seen <= {1, 2, 3} and {2, 3} & seen
    now = read_label(model, "stable")
    before, version = rollback(model, "stable")
    assert before == now and version != now


def test_a_full_volume_leaves_the_label_as_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = root / "models/mlp"
    promote(model, 1, "stable")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        promote(model, 2, "stable")
    assert read_label(model, "stable") == 1
    assert not [p for p in (model / "labels").rglob("*") if p.name.endswith(".writing")]
