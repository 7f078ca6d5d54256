"""Policy and label files: one line each, and anything else is named and never waited for."""

import os
from pathlib import Path

import pytest

from converters.errors import BadPolicy
from converters.labels import ByLabel, Latest, Pinned, label_names, parse_policy, read_label, read_policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("latest 1", Latest(1)),
        ("latest", Latest(1)),
        ("latest 12\n", Latest(12)),
        ("pinned 3", Pinned((3,))),
        ("pinned 5, 3,5", Pinned((3, 5))),
        ("  label stable \n", ByLabel("stable")),
    ],
)
def test_a_policy_is_one_line_and_says_itself_back(text: str, policy: object) -> None:
    assert parse_policy(text, "policy") == policy
    assert parse_policy(str(policy), "policy") == policy


@pytest.mark.parametrize(
    "text",
    ["", "newest", "latest 0", "latest -1", "latest 101", "latest 1.5", "latest two", "latest 1\nlatest 2",
     "pinned", "pinned 3,", "pinned 0", "pinned 03", "pinned 9223372036854775808", "pinned a", "label",
     "label a/b", "label .hidden", "label a b", "label ../policy", "Latest 1", "\x00\xff", "latest ²"],
)  # fmt: skip
def test_anything_else_is_no_policy(text: str) -> None:
    with pytest.raises(BadPolicy, match=r"^some/policy: .* needed: 'latest N'"):
        parse_policy(text, "some/policy")


def damaged(path: Path, how: str) -> None:
    match how:
        case "empty":
            path.touch()
        case "binary":
            path.write_bytes(os.urandom(300))
        case "huge":
            path.write_bytes(b"1" * 10_000_000)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "words":
            path.write_text("three")
        case "zero":
            path.write_text("0")
        case "device":
            path.symlink_to("/dev/zero")


DAMAGE = ["empty", "binary", "huge", "pipe", "folder", "loop", "words", "zero", "device"]


@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_that_is_no_line_is_named_at_once(how: str, tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    damaged(tmp_path / "policy", how)
    damaged(tmp_path / "labels" / "stable", how)
    with pytest.raises(BadPolicy, match=r"policy: .*needed: "):
        read_policy(tmp_path)
    with pytest.raises(BadPolicy, match=r"labels/stable: .*needed: "):
        read_label(tmp_path, "stable")


def test_what_is_not_there_is_no_damage(tmp_path: Path) -> None:
    assert read_policy(tmp_path) == Latest(1)
    assert label_names(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        read_label(tmp_path, "stable")


def test_names_that_are_no_label_are_ignored_and_a_flood_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "labels"
    folder.mkdir()
    for name in ("stable", "canary", ".history", ".stable.writing", "stable~", "1st", "a" * 65):
        (folder / name).write_text("1")
    assert label_names(tmp_path) == ["canary", "stable"]
    for number in range(100):
        (folder / f"l{number}").write_text("1")
    with pytest.raises(BadPolicy, match="102 labels; needed: at most 100"):
        label_names(tmp_path)


def test_labels_that_are_no_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text("stable 1")
    with pytest.raises(BadPolicy, match="labels: Not a directory"):
        label_names(tmp_path)
