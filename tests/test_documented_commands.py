"""Every `jaxport ...` that the documents tell a person to type is one that the command takes, and every path in them is there."""

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxport.cli import COMMANDS, _parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
        ROOT / "deploy" / "README.md",
        ROOT / "terraform" / "README.md",
    ]
)
# What ends a command in a shell.
ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1", ")"}
# Folders whose files are named by their paths from the root.
FOLDERS = "deploy|docs|terraform|scripts|tests|jaxport|converters|serve_grpc|train_job|benchmarks|proto|locks"
# Made by who follows the documents, or by a command in them.
MADE = re.compile(r"deploy/overlays/(mine|ours)\b|terraform/terraform\.tfvars$")


def fenced(text: str) -> Iterator[str]:
    """The lines of each block of a shell, those that go on in one."""
    for block in re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()


def inline(text: str) -> Iterator[str]:
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(each.split()) for each in re.findall(r"`([^`]+)`", outside))


def commands(text: str) -> Iterator[list[str]]:
    """The words after `jaxport` of every command that is written out: with a subcommand and what it needs."""
    for line in [*fenced(text), *inline(text)]:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        for at, word in enumerate(words):
            starts = at == 0 or words[at - 1] in {*ENDS, "--", "exec"} or "=" in words[at - 1]
            if word == "jaxport" and starts and words[at + 1 : at + 2] and words[at + 1] in COMMANDS:
                rest = words[at + 1 :]
                end = next(
                    (n for n, each in enumerate(rest) if each in ENDS or each.startswith(("2>", "#"))),
                    len(rest),
                )
                yield rest[:end]


def refused(words: list[str]) -> str:
    """What the command's own parser says against it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            _parser(words[0]).parse_args(words)
    except SystemExit as left:
        return "" if left.code == 0 else said.getvalue().strip().splitlines()[-1]
    except argparse.ArgumentError as error:
        return str(error)
    return ""


def abridged(words: list[str]) -> bool:
    """Only named, with an ellipsis, or with a flag alone to speak of it: nothing to type."""
    return len(words) < 2 or any("..." in word or "…" in word or word.startswith("<") for word in words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_says_of_jaxport_is_what_it_takes(page: Path) -> None:
    text = page.read_text()
    whole = [
        words for line in fenced(text) for words in commands(f"```sh\n{line}\n```") if not abridged(words)
    ]
    assert [(words, said) for words in whole if (said := refused(words))] == []
    # In a sentence a command may lack what it is about; its flags are its own.
    named = [words for part in inline(text) for words in commands(f"`{part}`") if not abridged(words)]
    assert [
        (words, said) for words in named if "unrecognized" in (said := refused(words)) or "invalid" in said
    ] == []


def paths(text: str) -> set[str]:
    """As they stand between backticks, in blocks, and in links."""
    found = re.findall(rf"(?<![\w/.:-])((?:{FOLDERS})/[\w./-]*[\w/])(?![\w*{{<$])", text)
    return {each.rstrip("/") for each in found if not MADE.match(each)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    text = re.sub(r"https?://\S+", "", page.read_text())
    missing = [
        each for each in paths(text) if not (ROOT / each).exists() and not (page.parent / each).exists()
    ]
    assert missing == []
    # Code calls what it looks up, which reads like a link.
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose):
        assert (page.parent / link).exists(), link


def test_a_mistake_in_a_page_is_found() -> None:
    [typed] = commands("```sh\nkubectl exec maintenance -- jaxport promote tiny 3 --labels stable  # so\n```")
    assert typed == ["promote", "tiny", "3", "--labels", "stable"] and "unrecognized" in refused(typed)
    [piped] = commands("```sh\nkubectl kustomize x | jaxport submit all --manifests - --folow\n```")
    assert "unrecognized" in refused(piped)
    assert paths("see `deploy/overlays/nowhere`, deploy/overlays/mine and terraform/main.tf.") == {
        "deploy/overlays/nowhere",
        "terraform/main.tf",
    }
    assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 40
