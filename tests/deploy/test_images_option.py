"""The tag of new images: `make images TAG=...`, and newTag in a kustomization."""

import os
import subprocess
from pathlib import Path

import pytest

from deploy.images.__main__ import arguments
from deploy.images.build import Build
from tests.deploy.kubectl import kubectl
from tests.deploy.objects import BASE, ROOT, parsed
from tests.deploy.policies.pods import (
    images_are_pinned,
    images_have_the_versions_of_the_project,
    project_version,
)


def test_the_tag_is_the_version_of_the_project_or_what_is_asked_for() -> None:
    for words, tag in (([], project_version()), (["--tag", "0.1.0-2"], "0.1.0-2")):
        wanted = Build("serve", "cuda12", "base", arguments(words).tag)
        assert wanted.tag == f"localhost/jaxport/serve:{tag}-cuda12"


@pytest.mark.parametrize("tag", ["latest", "0.1.0-latest", "", ".1", "a b", "a:b", "a/b", "x" * 101])
def test_what_is_no_tag_or_tells_nothing_is_refused(tag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(["--tag", tag])
    assert ended.value.code == 2 and f"--tag: {tag!r}: needed:" in capsys.readouterr().err


def test_make_passes_it_on() -> None:
    def said(*words: str) -> str:
        done = subprocess.run(
            ["make", "-n", "images", *words], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert "--tag '0.1.0-2'" in said("TAG=0.1.0-2") and "--tag" not in said()


@pytest.mark.parametrize(
    "tag, found",
    [("0.1.0-2-cuda12", ""), ("abc123-cuda12", ""), ("latest", "latest"), ("0.2.0-cuda12", "0.2.0")],
)
def test_a_kustomization_can_change_it_and_latest_is_found(tag: str, found: str, tmp_path: Path) -> None:
    """The images line that docs/operations.md shows."""
    folder = tmp_path.resolve()
    image = f"{{name: localhost/jaxport/serve, newName: registry.example.com/jaxport/serve, newTag: {tag}}}"
    (folder / "kustomization.yaml").write_text(
        f"resources: [{os.path.relpath(BASE, folder)}]\nimages: [{image}]\n"
    )
    objects = parsed(kubectl("kustomize", folder))
    images = {line for line in str(objects).split("'") if "/jaxport/serve:" in line}
    assert images == {f"registry.example.com/jaxport/serve:{tag}"}
    said = [*images_are_pinned(objects), *images_have_the_versions_of_the_project(objects)]
    assert all(found in each for each in said) and bool(said) == bool(found)
