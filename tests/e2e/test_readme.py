"""What README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

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
