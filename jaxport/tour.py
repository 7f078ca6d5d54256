"""The whole way on this machine, by the commands that a person would type: python -m jaxport.tour [--root work]

Trains nano on the sources of the running Python, exports it, verifies the bundle, serves it, asks it over gRPC what
comes next, and stops the server. Every line that starts with $ can be typed again.
"""

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from jaxport.errors import CheckFailed, ClientError, NotFit

PRESET = "nano"
PROMPT = "raise ValueErr"
READY_SECONDS = 120.0
READY = re.compile(r"\bready grpc=(\S+) http=(\S+)")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path("work"), help="default: ./work")
    root = parser.parse_args().root
    start = time.monotonic()
    try:
        tour(root)
    except ClientError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(
        f"\nthe whole way took {time.monotonic() - start:.0f} s; next: README.md, or see what it made in {root}/"
    )
    return 0


def tour(root: Path) -> None:
    """Raises CheckFailed where a stage fails or the model has learned less than a table of byte pairs."""
    _title("train")
    run("train", "--preset", PRESET, "--root", str(root))
    _title("export")
    bundle = _exported(run("export", "--run", PRESET, "--root", str(root)))
    run("verify", bundle)
    _title("serve")
    with served(root) as (address, log):
        _title("predict")
        run("predict", PRESET, "--text", PROMPT, "--bytes", "4", "--address", address)
        compiles = _compiles_after_ready(log)
    _title("what happened")
    _summary(root, bundle, compiles)


def run(*arguments: str) -> str:
    """Runs `jaxport ARGUMENTS`, shows what it prints as it comes, and returns it. CheckFailed: its exit code."""
    shown = " ".join(f"'{a}'" if " " in a else a for a in arguments)
    print(f"$ jaxport {shown}", flush=True)
    lines = []
    with subprocess.Popen(_command(*arguments), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(f"  {line}", end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise CheckFailed(f"jaxport {shown}: ended with exit code {process.returncode}")
    return "".join(lines)


@contextlib.contextmanager
def served(root: Path, *flags: str) -> Iterator[tuple[str, str]]:
    """(gRPC address, HTTP address) of a server on free ports, which is stopped by SIGTERM at the end."""
    log = root / "serve.log"
    arguments = ("serve", "--models", str(root / "models"), "--grpc-port", "0", "--http-port", "0", *flags)
    print(f"$ jaxport {' '.join(arguments)}", flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(_command(*arguments), stdout=output, stderr=output)
    try:
        grpc_address, http_address = _wait_until_ready(process, log)
        print(f"  ready: gRPC on {grpc_address}, metrics and a status page on http://{http_address}/")
        yield grpc_address, http_address
        process.send_signal(signal.SIGTERM)
        if process.wait(timeout=60):
            raise CheckFailed(f"the server ended with exit code {process.returncode}; its log is {log}")
        print("stopped the server by SIGTERM: it drained and exited 0")
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = READY.search(log.read_text())
        if found:
            return found[1], found[2]
        time.sleep(0.1)
    last = (log.read_text().strip().splitlines() or ["it printed nothing"])[-1]
    raise NotFit(f"the server was not ready after {READY_SECONDS:.0f} s: {last}; its log is {log}")


def _compiles_after_ready(http_address: str) -> float | None:
    from jaxport.scrape import scrape

    found = scrape(http_address)
    return found.total("jaxport_compiles_after_ready_total") if found else None


def _summary(root: Path, bundle: str, compiles: float | None) -> None:
    record = json.loads((root / "runs" / PRESET / "run.json").read_text())
    inspected = subprocess.run(
        _command("inspect", bundle, "--json"), capture_output=True, text=True, check=True
    )
    manifest = json.loads(inspected.stdout)["manifest"]
    learned = manifest["provenance"]["metrics"]["val_bits_per_byte"]
    bigram = record["baselines"]["val_bits_per_byte"]
    program = next(f["bytes"] for name, f in manifest["files"].items() if name.startswith("programs/"))
    print(
        f"trained      {learned:.3f} bits per byte on text it never saw; a byte bigram of the same text: {bigram:.3f}"
    )
    print(
        f"exported     {program:,} bytes of program for {' and '.join(manifest['platforms'])}, weights beside it"
    )
    print("verified     the goldens of the source function, in a process that has neither flax nor the model")
    print(
        f"served       warm before it said ready; compiles after that: {'?' if compiles is None else f'{compiles:.0f}'}"
    )
    print(f"plot         {root / 'runs' / PRESET / 'loss.png'}")
    if learned >= bigram:
        raise CheckFailed(
            f"{PRESET} has {learned:.3f} bits per byte, the bigram {bigram:.3f}: it learned too little"
        )


def _exported(output: str) -> str:
    found = re.search(r"^wrote (\S.*?): ", output, re.MULTILINE)
    if found is None:
        raise CheckFailed("jaxport export did not say what it wrote")
    return found[1]


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "jaxport", *arguments]


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
