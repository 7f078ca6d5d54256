"""The objects that are to be there: deploy/'s own files, or any other YAML, as kubectl reads it."""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from jaxport.cluster.api import Object
from jaxport.cluster.documents import MOST_BYTES, decoded, documents
from jaxport.cluster.errors import NotFit, UsageError
from jaxport.cluster.shape import objects_of

# In a wheel the files of deploy/base lie beside this module; in a checkout they are where they are.
_HERE = Path(__file__).resolve().parent
OURS = (_HERE / "base", _HERE.parents[1] / "deploy" / "base")
STDIN = "-"
KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
SUFFIXES = (".yaml", ".yml", ".json")


def read_manifests(source: str | None) -> list[Object]:
    """The objects of a file, a folder, or standard input ("-"); None: those of deploy/, in the order of their files.

    Raises:
        UsageError: nothing there, no YAML, or no objects of Kubernetes. NotFit: a kustomization, and no kubectl.
    """
    if source is None:
        return _objects(_texts(_plain(_own_folder())))
    if source == STDIN:
        return _objects([("--manifests -", decoded("--manifests -", _standard_input()))])
    path = Path(source)
    try:
        if path.is_dir():
            if any((path / name).exists() for name in KUSTOMIZATIONS):
                return _objects([(f"kubectl kustomize {source}", _kustomized(path))])
            return _objects(_texts(_plain(path)))
        return _objects(_texts([path]))
    except FileNotFoundError as error:
        raise UsageError(f"--manifests {error.filename}: no such file or folder") from None
    except OSError as error:
        raise UsageError(f"--manifests {source}: {error.strerror or error}") from error


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise UsageError(
            "--manifests -: standard input is closed; needed: manifests by a pipe or from a file"
        )
    return sys.stdin.buffer.read(MOST_BYTES + 1)


def as_yaml(objects: Iterable[Object]) -> str:
    """The documents of one YAML file; texts of several lines as blocks."""
    return yaml.dump_all(objects, Dumper=_Blocks, sort_keys=False, width=110)


class _Blocks(yaml.SafeDumper):
    """As a person would write it."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _text)


def _own_folder() -> Path:
    for folder in OURS:
        if folder.is_dir():
            return folder
    raise NotFit(f"this installation came without the manifests ({OURS[0]}); give --manifests deploy/")


def _plain(folder: Path) -> list[Path]:
    """As `kubectl apply -f FOLDER` reads it, in its order."""
    files = sorted(
        each for each in folder.iterdir() if each.suffix in SUFFIXES and each.name not in KUSTOMIZATIONS
    )
    if not files:
        raise UsageError(f"--manifests {folder}: no {', '.join(SUFFIXES)} in it")
    return files


def _texts(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        with file.open("rb") as stream:
            yield str(file), decoded(str(file), stream.read(MOST_BYTES + 1))


def _kustomized(folder: Path) -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise NotFit(
            f"--manifests {folder}: it has a kustomization, which kubectl builds, and there is no kubectl on PATH; "
            f"install it, or build elsewhere and give --manifests - the output of kubectl kustomize {folder}"
        )
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, check=False)
    if done.returncode:
        raise UsageError(
            f"--manifests {folder}: kubectl kustomize: {' '.join(done.stderr.decode(errors='replace').split())}"
        )
    return decoded(f"kubectl kustomize {folder}", done.stdout)


def _objects(texts: Iterable[tuple[str, str]]) -> list[Object]:
    found: list[Object] = []
    for source, text in texts:
        for where, document in documents(source, text):
            if document is not None:
                found += objects_of(where, document)
    if not found:
        raise UsageError("--manifests: no objects in it")
    _require_each_once(found)
    return found


def _require_each_once(objects: Iterable[Object]) -> None:
    seen: set[tuple[str, str, str, str]] = set()
    for each in objects:
        meta = each["metadata"]
        key = (each["apiVersion"], each["kind"], meta.get("namespace", ""), meta["name"])
        if key in seen:
            raise UsageError(f"--manifests: {each['kind']} {meta['name']} is in it twice")
        seen.add(key)
