"""The bundle's reader: everything is hashed before it is parsed, and nothing else of jaxport is needed.

    bundle = open_bundle(Path("models/nano/1"))
    program = bundle.exported("predict")
    outputs = program.call(bundle.load_weights(), {"tokens": tokens})

Digests give integrity, not authenticity: whoever can write the volume is trusted.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path

import jax.export
import numpy as np

from converters.errors import BundleError, BundleNotFound, OutsideWindow
from converters.golden import Golden, check_outputs, unpack_goldens
from converters.manifest import ANY_BATCH, Manifest, Signature
from converters.manifest_json import parse_manifest
from converters.window import INSIDE, refusal

MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.json.sha256"
WEIGHTS = "weights"
CHUNK = 1 << 20
MOST_THREADS = 8
# Parsing keeps the interpreter, and whoever reads may be serving.
MOST_MANIFEST_BYTES = 32 * 1024**2
MOST_DIGEST_BYTES = 1024
LONGEST_REASON = 120
LARGEST_VERSION = 2**63 - 1  # the wire's int64
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def list_versions(model_dir: Path) -> list[int]:
    """Versions in a model's folder, ascending. Names that are not positive integers are ignored.

    One that cannot be looked into is among them: whoever opens it learns why. Raises OSError for the model's folder.
    """
    try:
        names = [entry.name for entry in model_dir.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbers = [number for name in names if (number := parse_version(name)) is not None]
    return sorted(n for n in numbers if _may_be_file(model_dir / str(n) / MANIFEST))


def parse_version(name: str) -> int | None:
    """The version that a folder's name says: a positive int64 without leading zeros; None for any other name."""
    if (
        not (name.isascii() and name.isdigit())
        or name.startswith("0")
        or len(name) > len(str(LARGEST_VERSION))
    ):
        return None
    return int(name) if int(name) <= LARGEST_VERSION else None


def list_models(models_root: Path) -> list[str]:
    """Names of the folders that hold at least one version, sorted. What is no model's name is ignored.

    A folder that cannot be looked into is among them, and `list_versions` of it says why.
    """
    try:
        entries = sorted(models_root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [e.name for e in entries if MODEL_NAME.fullmatch(e.name) and _may_hold_versions(e)]


def _may_hold_versions(folder: Path) -> bool:
    try:
        return bool(list_versions(folder))
    except OSError as error:
        return error.errno != errno.ELOOP  # a link to itself is nothing


def _may_be_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        return error.errno != errno.ELOOP


@dataclass(frozen=True)
class Bundle:
    """A bundle whose digests were right when it was opened. Files are hashed again as they are parsed."""

    path: Path
    manifest: Manifest

    @property
    def version(self) -> int:
        """The folder's number; 0 for a bundle that lies under another name."""
        return parse_version(self.path.absolute().name) or 0

    @property
    def swap_key(self) -> str:
        return self.manifest.swap_key

    def signature(self, name: str = "predict") -> Signature:
        try:
            return self.manifest.signatures[name]
        except KeyError:
            known = ", ".join(sorted(self.manifest.signatures))
            raise BundleNotFound(f"{self.path}: no signature {name!r}; it has {known}") from None

    def exported(self, name: str = "predict", batch: int = ANY_BATCH) -> jax.export.Exported:
        """The program. `.call(weights, inputs)` takes and gives dicts by name; see load_weights.

        batch: of a signature with fixed batches the one that is meant. BundleNotFound where there is none for it.
        """
        signature = self.signature(name)
        if batch not in signature.programs:
            has = ", ".join(map(str, signature.batches)) or "any batch in one program"
            asked = f"batch {batch}" if batch != ANY_BATCH else "any batch"
            raise BundleNotFound(f"{self.path}: no program of {name!r} for {asked}; it has {has}")
        data = self.read(signature.programs[batch])
        try:
            exported = jax.export.deserialize(bytearray(data))
            # Parses the StableHLO inside, which `deserialize` leaves to the first compile.
            exported.mlir_module()
        # The format has no error type of its own: flatbuffers, MLIR and jax raise what they like.
        except Exception as error:
            raise self._unreadable(error) from error
        _check_against_manifest(exported, self.manifest, signature.at_batch(batch), self.path / MANIFEST)
        return exported

    def programs(self, name: str = "predict") -> dict[int, jax.export.Exported]:
        """All programs of a signature by the batch each is for; the one of ANY_BATCH takes any."""
        return {batch: self.exported(name, batch) for batch in self.signature(name).programs}

    def _unreadable(self, error: Exception) -> BundleError:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        window = self.manifest.window
        line = f"{refusal(window, jax.__version__, str(self.path), of_a_run=self.manifest.of_a_run)} ({lines[0][:LONGEST_REASON]})"
        inside = window.place(installed("jaxlib")) == INSIDE
        return BundleError(line) if inside else OutsideWindow(line)

    def load_weights(self) -> dict[str, np.ndarray]:
        """Every weight by name, on the host. Each array's own digest is checked after parsing."""
        self._check_folder(WEIGHTS)
        # Here and not above: reading a manifest or a program needs no orbax.
        from orbax.checkpoint import v1 as ocp

        specs = self.manifest.weights
        try:
            empty = {w.name: np.empty(w.shape, _dtype(w.dtype)) for w in specs}
            stored = {name: array for name, array in empty.items() if array.size}
            loaded = ocp.load(str((self.path / WEIGHTS).absolute()), stored) if stored else {}
        # Orbax and TensorStore have a dozen types for weights that are not what the manifest says they are.
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise BundleError(f"{self.path / WEIGHTS}: not the weights of {MANIFEST} ({reason})") from error
        # Orbax stores no array without elements; the manifest knows all there is to know of one.
        weights = {w.name: np.asarray(loaded[w.name]) if w.name in loaded else empty[w.name] for w in specs}
        for spec, digest in zip(specs, side_by_side(array_sha256, list(weights.values())), strict=True):
            if digest != spec.sha256:
                raise BundleError(
                    f"{self.path / WEIGHTS}: weight {spec.name!r} is not the one that was exported"
                )
        return weights

    def goldens(self, name: str = "predict") -> tuple[Golden, ...]:
        """Inputs and the source function's outputs, for batch 1 and a ragged batch; of a sequence in several lengths."""
        signature = self.signature(name)
        source = str(self.path / signature.golden)
        goldens = unpack_goldens(self.read(signature.golden), source)
        for golden in goldens:
            for arrays, tensors in ((golden.inputs, signature.inputs), (golden.outputs, signature.outputs)):
                has = {name: (array.dtype.name, array.ndim) for name, array in arrays.items()}
                if has != {tensor.name: (tensor.dtype, len(tensor.shape)) for tensor in tensors}:
                    raise BundleError(f"{source}: a golden has arrays that are not those of {name!r}")
        return goldens

    def gradient_golden(self, name: str = "predict") -> Golden | None:
        """Inputs, cotangents and some elements of the source function's gradients; None where it has no gradients."""
        signature = self.signature(name)
        if not signature.vjp_order:
            return None
        path = signature.gradient_golden
        return unpack_goldens(self.read(path), str(self.path / path))[0]

    def check_golden(
        self, name: str, golden: Golden, outputs: Mapping[str, np.ndarray], platform: str
    ) -> float:
        """Compares `outputs` with the golden's; returns error / allowed, raises GoldenMismatch above 1.

        `platform` is jax.export's name for the device: "cpu", "cuda".
        """
        return self._check(name, golden, outputs, platform, {output: output for output in golden.outputs})

    def check_gradient(
        self, name: str, golden: Golden, found: Mapping[str, np.ndarray], platform: str
    ) -> float:
        """As check_golden, of what `gradient_golden` gave; found: the same elements, by the same names."""
        groups = {output: f"vjp/{output.partition('/')[0]}" for output in golden.outputs}
        return self._check(name, golden, found, platform, groups)

    def _check(
        self,
        name: str,
        golden: Golden,
        outputs: Mapping[str, np.ndarray],
        platform: str,
        keys: Mapping[str, str],
    ) -> float:
        """keys: what stands behind the signature's name in the manifest's tolerances, by output."""
        try:
            tolerances = self.manifest.tolerances[platform]
            wanted = {output: tolerances[f"{name}/{key}"] for output, key in keys.items()}
        except KeyError as missing:
            raise BundleError(
                f"{self.path / MANIFEST}: has no tolerance for {missing} on {platform}"
            ) from None
        what = f"{self.path} {name} {golden.size} on {platform}"
        return check_outputs(outputs, golden.outputs, wanted, what)

    def read(self, name: str) -> bytes:
        """The bytes of one file of the manifest, checked against its digest."""
        digest = self.manifest.files.get(name)
        if digest is None:
            raise BundleError(f"{self.path / name}: not in the manifest")
        data = _read(self.path / name, digest.bytes)
        if len(data) != digest.bytes or hashlib.sha256(data).hexdigest() != digest.sha256:
            raise _altered(self.path / name, len(data), digest.bytes)
        return data

    def check_files(self, *, weights: bool = True) -> None:
        """Hashes every file; BundleError names the first that is missing, altered or not in the manifest.

        Without `weights` their folder is left out: load_weights checks it.
        """
        for name in self.manifest.files:
            if weights or not name.startswith(f"{WEIGHTS}/"):
                self._check_file(name)
        if weights:
            self._check_folder(WEIGHTS, hashed=True)

    def _check_folder(self, folder: str, *, hashed: bool = False) -> None:
        """Every file below `folder` is in the manifest, and (unless just `hashed`) is what it says."""
        for path in _files(self.path / folder):
            name = path.relative_to(self.path).as_posix()
            if name not in self.manifest.files:
                raise BundleError(f"{path}: not in the manifest; remove it")
        if not hashed:
            side_by_side(self._check_file, [n for n in self.manifest.files if n.startswith(f"{folder}/")])

    def _check_file(self, name: str) -> None:
        path, wanted = self.path / name, self.manifest.files[name]
        digest, size = hashlib.sha256(), 0
        _require_size(path, wanted.bytes)
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
        except OSError as error:
            raise BundleError(f"{path}: {error.strerror or error}") from None
        if size != wanted.bytes or digest.hexdigest() != wanted.sha256:
            raise _altered(path, size, wanted.bytes)


def open_bundle(path: Path | str) -> Bundle:
    """Reads the manifest and hashes every file of the bundle at `path`.

    BundleNotFound: there is no bundle. BundleError: a file is missing, altered, or of another schema.
    """
    if not str(path):
        raise BundleNotFound("no path is given; a bundle is models/<name>/<version>")
    path = Path(path)
    if not path.is_dir():
        raise BundleNotFound(f"{path}: no such folder; a bundle is models/<name>/<version>")
    bundle = Bundle(path, read_manifest(path))
    bundle.check_files()
    return bundle


def read_manifest(path: Path | str) -> Manifest:
    """The manifest alone, checked against manifest.json.sha256. No other file is touched."""
    path = Path(path)
    try:
        is_bundle = (path / MANIFEST).exists() or (path / MANIFEST_DIGEST).exists()
    except OSError as error:
        raise BundleError(f"{path / MANIFEST}: {error.strerror or error}") from None
    if not is_bundle:
        versions = ", ".join(map(str, list_versions(path)))
        hint = f"; its versions are {versions}" if versions else ""
        raise BundleNotFound(f"{path}: holds no {MANIFEST}{hint}")
    data = _read_up_to(path / MANIFEST, MOST_MANIFEST_BYTES)
    wanted = _read_up_to(path / MANIFEST_DIGEST, MOST_DIGEST_BYTES).decode("ascii", "replace")
    if wanted != digest_line(data):
        raise BundleError(f"{path / MANIFEST}: does not match {MANIFEST_DIGEST}; one of the two was altered")
    return parse_manifest(data, str(path / MANIFEST))


def digest_line(manifest: bytes) -> str:
    """The content of manifest.json.sha256, in the format of sha256sum."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n"


def array_sha256(array: np.ndarray) -> str:
    """Digest of an array's row-major bytes."""
    # uint8 views: bfloat16 and its kin do not export a buffer of their own.
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _dtype(name: str) -> np.dtype:
    """One of numbers; TypeError for others."""
    dtype = np.dtype(name)
    if dtype.kind not in "biufcV" or not dtype.itemsize:
        raise TypeError(f"the dtype {name[:40]!a} is none of numbers")
    return dtype


def side_by_side[T, R](function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results in order, on every core: reading and hashing leave the interpreter to others. Raises the first error."""
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "digests") as pool:
        return list(pool.map(function, items))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if not path.is_dir())


def _require_file(path: Path) -> None:
    """A pipe would be waited for without end."""
    if path.exists() and not path.is_file():
        raise BundleError(f"{path}: not a regular file")


def _check_against_manifest(
    exported: jax.export.Exported, manifest: Manifest, signature: Signature, source: Path
) -> None:
    """The manifest's names, dtypes and shapes are those of the program; BundleError names the first that is not."""
    if exported.nr_devices != manifest.nr_devices:
        raise BundleError(
            f"{source}: nr_devices is {manifest.nr_devices}, the program of {signature.name!r} is for {exported.nr_devices}"
        )
    (weights, inputs), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    for kind, listed, found in (
        ("weight", manifest.weights, weights),
        ("input", signature.inputs, inputs),
        ("output", signature.outputs, outputs),
    ):
        said = {t.name: f"{t.dtype}[{', '.join(map(str, t.shape))}]" for t in listed}
        has = {name: f"{a.dtype.name}[{', '.join(map(str, a.shape))}]" for name, a in found.items()}
        for name in sorted(said.keys() | has.keys()):
            if said.get(name) != has.get(name):
                raise BundleError(
                    f"{source}: {kind} {name!r} of {signature.name!r} is {said.get(name, 'absent')}, "
                    f"the program has {has.get(name, 'none of that name')}"
                )


def _size(path: Path) -> int:
    _require_file(path)
    try:
        return path.stat().st_size
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror or error}") from None


def _require_size(path: Path, wanted: int) -> None:
    """Before a byte of it is read: a sparse file may claim more than there is memory or time for."""
    if (size := _size(path)) != wanted:
        raise _altered(path, size, wanted)


def _read(path: Path, wanted: int) -> bytes:
    _require_size(path, wanted)
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror or error}") from None


def _read_up_to(path: Path, most: int) -> bytes:
    if (size := _size(path)) > most:
        raise BundleError(f"{path}: has {size} bytes; needed: at most {most}")
    return _read(path, size)


def _altered(path: Path, size: int, wanted: int) -> BundleError:
    how = f"{size} bytes, the manifest has {wanted}" if size != wanted else "its sha256 is not the manifest's"
    return BundleError(f"{path}: altered or damaged ({how}); export or copy the bundle again")
