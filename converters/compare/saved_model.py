"""A bundle's SavedModel in a process of its own: the threads of TensorFlow and of JAX get in each other's way.

The process is told on standard input what to run, a line of JSON at a time, and answers in the same way. It needs
TensorFlow and numpy, no JAX, so it may be another interpreter's.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.bundle import Bundle
from converters.compare.inputs import goldens_of
from converters.errors import ConvertError
from converters.golden import Golden, pack_goldens, unpack_goldens
from converters.manifest import Signature

FOLDER = "savedmodel"
VERSION = "1"
# Of the interpreter that runs it, nothing but our own modules is ours: what lies beside them may be another Python's.
CHILD = (
    "import sys, numpy, ml_dtypes; sys.path.insert(0, {home!r}); "
    "from converters.compare.saved_model_process import main; sys.path.pop(0); "
    "main({folder!r}, {signature!r}, {inputs!r})"
)
GIVE_UP_SECONDS = 10.0


class NotThere(ConvertError):
    """Why the SavedModel is not run, for a table; an error only where it ends between two rounds."""

    exit_code = 4


class SavedModelWay:
    """See converters.compare.ways.Way. versions: of TensorFlow, for those who read the figures."""

    name = "SavedModel"

    def __init__(
        self, folder: Path, signature: str, batches: Mapping[int, Any], goldens: Any, python: str
    ) -> None:
        """Starts the process and loads the SavedModel. Raises NotThere."""
        self._scratch = tempfile.TemporaryDirectory()
        self._goldens = goldens
        self._at = {batch: at for at, batch in enumerate(batches)}
        inputs = Path(self._scratch.name) / "inputs.npz"
        given = [Golden(batch, arrays, {}) for batch, arrays in batches.items()]
        inputs.write_bytes(pack_goldens([*given, *(Golden(g.batch, g.inputs, {}) for g in goldens)]))
        home = str(Path(__file__).resolve().parents[2])
        code = CHILD.format(home=home, folder=str(folder), signature=signature, inputs=str(inputs))
        self._log = (Path(self._scratch.name) / "stderr").open("w+")
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-I", "-c", code],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            )  # fmt: skip
        except OSError as error:
            self._log.close()
            self._scratch.cleanup()
            raise NotThere(f"{python} cannot be started: {error.strerror}") from None
        self._to: Any = self._process.stdin
        self._from: Any = self._process.stdout
        try:
            ready = self._reply()
        except NotThere:
            self.close()
            raise
        self.load_s: float | None = ready["load_s"]
        self.versions = {"tensorflow": ready["tensorflow"]}
        self.what = f"{FOLDER}/{VERSION}/ in TensorFlow {ready['tensorflow']}, a process of its own"

    def first(self, batch: int) -> float:
        return self.burst(batch, 1)[0]

    def burst(self, batch: int, calls: int) -> list[float]:
        return self._ask({"at": self._at[batch], "calls": calls})["seconds"]

    def answer(self, golden: Golden) -> dict[str, np.ndarray]:
        number = next(n for n, known in enumerate(self._goldens) if known is golden or _same(known, golden))
        file = Path(self._scratch.name) / "outputs.npz"
        self._ask({"at": len(self._at) + number, "file": str(file)})
        (found,) = unpack_goldens(file.read_bytes(), str(file))
        return dict(found.outputs)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what it no longer reads
            self._to.close()
        self._from.close()
        try:
            self._process.wait(GIVE_UP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._scratch.cleanup()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._to.write(json.dumps(request) + "\n")
            self._to.flush()
        except OSError:
            raise NotThere(self._end()) from None
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        line = self._from.readline()
        try:
            reply = json.loads(line)
        except ValueError:
            raise NotThere(self._end()) from None
        if "error" in reply:
            raise NotThere(reply["error"])
        return reply

    def _end(self) -> str:
        """What a process that died has left."""
        time.sleep(0.1)  # for its last line
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f"its process ended: {lines[-1][:200] if lines else 'without a word'}"


def open_saved_model(
    bundle: Bundle, signature: Signature, batches: Mapping[int, Any], python: str
) -> SavedModelWay:
    """The SavedModel, loaded. Raises NotThere."""
    if not any(name.startswith(f"{FOLDER}/") for name in bundle.manifest.files):
        cure = "it would be for one device" if bundle.manifest.mesh else "export with --savedmodel"
        raise NotThere(f"the bundle has none; {cure}")
    folder = (bundle.path / FOLDER / VERSION).absolute()
    return SavedModelWay(folder, signature.name, batches, goldens_of(bundle, signature.name), python)


def _same(one: Golden, other: Golden) -> bool:
    return (one.batch, one.length) == (other.batch, other.length)
