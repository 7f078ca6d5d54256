"""What README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

from jaxport.cli import COMMANDS
from tests.servers import running_server

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_your_own_function_goes_from_its_ten_lines_to_an_answer(tmp_path: Path) -> None:
    export, ask = blocks("python")
    subprocess.run([sys.executable, "-c", export], cwd=tmp_path, check=True)
    with running_server(tmp_path / "work" / "models", "--max-batch", "2") as server:
        code = ask.replace("localhost:8500", server.grpc)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\[\[[-0-9. e]+\]\]", done.stdout.strip())


def test_every_command_shown_exists_and_takes_the_flags_shown() -> None:
    from jaxport.cli import _parser

    shown = re.findall(r"^\$? ?jaxport ([a-z]+)(.*)$", "\n".join(blocks("sh")), re.MULTILINE)
    assert {name for name, _ in shown} <= set(COMMANDS)
    for name, rest in shown:
        known = _parser(name).format_help() + _help_of(name)
        for flag in re.findall(r"--[a-z-]+", rest.partition("#")[0]):
            assert flag in known, f"jaxport {name} {flag}"


def _help_of(name: str) -> str:
    import argparse
    import importlib

    parser = argparse.ArgumentParser()
    importlib.import_module(f"jaxport.commands.{name}").add_flags(parser)
    return parser.format_help()


def test_every_make_target_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    shown = re.findall(r"\bmake ([a-z-]+)\b|\b(test-[a-z]+)\b", README.read_text())
    assert {"".join(each) for each in shown} <= targets
