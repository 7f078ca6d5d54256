"""jaxport's native transport on a unix socket, and Envoy in front of it on the port: one process tree.

SERVE_ENVOY.py MODELS_DIR PORT envoy=PATH [concurrency=1], by jaxport's own Python, from the repository's root.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

CONFIG_MAP = "jaxport-envoy"
DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
SECONDS = 300.0


def main() -> None:
    models, port, *pairs = sys.argv[1:]
    settings = dict(pair.split("=", 1) for pair in pairs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        socket, log = Path(folder) / "grpc.sock", Path(folder) / "server.log"
        config = configuration(Path(folder), grpc_port=int(port), front_port=0)
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


def configuration(folder: Path, grpc_port: int, front_port: int) -> Path:
    """Writes the proxy's configuration of deploy/ into `folder`, on loopback and with its sockets in `folder` and its
    certificates in `folder`/tls; nothing else is changed. Returns the file to start Envoy with."""
    for name, text in config_map().items():
        (folder / name).write_text(text.replace("/etc/envoy/", f"{folder}/"))
    config = folder / "envoy.yaml"
    replaced(config, "address: 0.0.0.0", "address: 127.0.0.1", times=2)
    replaced(config, "port_value: 8500", f"port_value: {grpc_port}")
    replaced(config, "port_value: 8502", f"port_value: {front_port}")
    replaced(config, "/run/jaxport/admin.sock", f"{folder}/admin.sock", times=2)
    replaced(config, "/run/jaxport/grpc.sock", f"{folder}/grpc.sock")
    return config


def config_map() -> dict[str, str]:
    """The files of the proxy's ConfigMap, by name."""
    documents = [
        each for path in sorted(DEPLOY.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())
    ]
    named = [each for each in documents if each and each["metadata"]["name"] == CONFIG_MAP]
    if [each["kind"] for each in named] != ["ConfigMap"]:
        sys.exit(f"{len(named)} objects in {DEPLOY} are named {CONFIG_MAP}; needed: one ConfigMap")
    return named[0]["data"]


def replaced(file: Path, old: str, new: str, times: int = 1) -> None:
    """Puts `new` in place of `old` in the file. Raises ValueError where `old` is not there so often."""
    text = file.read_text()
    if text.count(old) != times:
        raise ValueError(f"{file.name} has {text.count(old)} times {old!r}; needed: {times}")
    file.write_text(text.replace(old, new))


def wait_for(word: str, log: Path, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + SECONDS
    while word not in log.read_text():
        if process.poll() is not None or time.monotonic() > end:
            lines = log.read_text().strip().splitlines() or ["it printed nothing"]
            sys.exit(f"jaxport serve: {lines[-1]}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
