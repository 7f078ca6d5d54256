"""jaxport's native transport on a unix socket, and Envoy in front of it on the port: one process tree.

SERVE_ENVOY.py MODELS_DIR PORT envoy=PATH [concurrency=1], by jaxport's own Python, from the repository's root.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parent.parent / "envoy.yaml"
SECONDS = 300.0


def main() -> None:
    models, port, *pairs = sys.argv[1:]
    settings = dict(pair.split("=", 1) for pair in pairs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        socket, config, log = (Path(folder) / name for name in ("grpc.sock", "envoy.yaml", "server.log"))
        config.write_text(filled(TEMPLATE.read_text(), port=port, socket=str(socket)))
        children: list[subprocess.Popen[bytes]] = []
        try:
            serve = ["serve", "--models", models, "--grpc-socket", str(socket), "--http-port", "0"]
            with log.open("wb") as output:
                command = [sys.executable, "-m", "jaxport", *serve, "--transport", "native"]
                children.append(subprocess.Popen(command, stderr=output))
            wait_for("ready grpc=", log, children[0])
            envoy = [settings["envoy"], "--config-path", str(config), "--log-level", "warning"]
            envoy += ["--concurrency", settings.get("concurrency", "1"), "--disable-hot-restart"]
            children.append(subprocess.Popen(envoy))
            print("READY", flush=True)
            while all(child.poll() is None for child in children):
                time.sleep(0.5)
            sys.exit("one of the two ended")
        finally:
            for child in reversed(children):
                child.kill()
                child.wait()


def filled(template: str, **values: str) -> str:
    """Replaces ${name}; every name must be given."""
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], template)


def wait_for(word: str, log: Path, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + SECONDS
    while word not in log.read_text():
        if process.poll() is not None or time.monotonic() > end:
            lines = log.read_text().strip().splitlines() or ["it printed nothing"]
            sys.exit(f"jaxport serve: {lines[-1]}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
