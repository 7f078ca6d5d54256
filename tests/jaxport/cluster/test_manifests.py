"""What is submitted is what deploy/ holds, wherever jaxport was installed from."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jaxport.cluster.errors import NotFit, UsageError
from jaxport.cluster.manifests import as_yaml, read_manifests
from tests.deploy.kubectl import kustomized
from tests.deploy.objects import BASE, DEPLOY, ROOT, parsed, plain

CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}\n"


def test_without_a_path_it_is_deploy() -> None:
    assert read_manifests(None) == plain()


def test_what_is_printed_is_what_was_read() -> None:
    text = as_yaml(read_manifests(None))
    assert parsed(text) == plain()
    assert "envoy.yaml: |\n" in text, "a file in a ConfigMap stays readable"


@pytest.mark.parametrize("whole", [True, False], ids=["a checkout", "an image's context, without deploy/"])
def test_a_wheel_has_the_manifests_and_an_image_needs_none(whole: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    names = ["pyproject.toml", "README.md", "LICENSE", "train_job", "converters", "serve_grpc", "jaxport"]
    for name in [*names, *(["deploy"] if whole else [])]:
        (root / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {
            name: archive.read(name)
            for name in archive.namelist()
            if name.startswith("jaxport/cluster/base/")
        }
    there = {f"jaxport/cluster/base/{file.name}": file.read_bytes() for file in BASE.iterdir()}
    assert found == (there if whole else {})


def test_a_file_a_folder_and_a_list(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(CLAIM)
    (tmp_path / "two.json").write_text(
        '{"kind": "List", "items": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}]}'
    )
    (tmp_path / "README.md").write_text("no manifest")
    assert [each["metadata"]["name"] for each in read_manifests(str(tmp_path))] == ["a", "b"]
    assert [each["metadata"]["name"] for each in read_manifests(str(tmp_path / "one.yaml"))] == ["a"]
    assert read_manifests(str(DEPLOY)) == plain()


def test_a_kustomization_is_built_by_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = DEPLOY / "overlays" / "cpu"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    assert read_manifests(str(cpu)) == parsed(kustomized(cpu))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NotFit, match=r"no kubectl on PATH; .*--manifests - the output of kubectl kustomize"):
        read_manifests(str(cpu))


def test_a_kustomization_that_is_wrong_says_what_kubectl_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    (tmp_path / "kustomization.yaml").write_text("resources: [none.yaml]\n")
    with pytest.raises(UsageError, match=r"kubectl kustomize: .*none\.yaml") as refused:
        read_manifests(str(tmp_path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "no YAML"),
        ("a: 1\na: 2", "a is given twice"),
        ("", "no objects"),
        ("just text", "no object of Kubernetes"),
        ("apiVersion: v1\nkind: Pod", "without apiVersion, kind or metadata.name"),
        (f"{CLAIM}---\n{CLAIM}", "PersistentVolumeClaim a is in it twice"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UsageError, match=said) as refused:
        read_manifests(str(tmp_path / "bad.yaml"))
    assert "\n" not in str(refused.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError, match=str(path)):
            read_manifests(str(path))
