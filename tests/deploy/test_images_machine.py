"""Where images are built need not be where they run: a Mac, or a laptop of another architecture than the nodes'."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.images import base, engine
from deploy.images.__main__ import arguments
from deploy.images.base import OFFICIAL, STAND_IN, base_image
from deploy.images.build import Build, build
from deploy.images.engine import Engine, NotPossible, find_engine

# Says which arguments it got; knows the images that it finds in $IMAGES, as "NAME PLATFORM" lines, and pulls none.
ENGINE = """#!/bin/sh
echo "CONTAINERS_CONF=$CONTAINERS_CONF $*" >> "$CALLS"
[ "$1" = pull ] && { echo "no such host" >&2; exit 125; }
[ "$1 $2" = "image inspect" ] || exit 0
for image; do :; done
case "$4" in
  '{{.Size}}') echo 1 ;;
  '{{.Id}}') echo same ;;
  *) found=$(grep "^$image " "$IMAGES") && echo "${found#* }" ;;
esac
"""

type Calls = Callable[[], list[str]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A podman that answers; what was asked of it so far."""
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    program.write_text(ENGINE)
    program.chmod(0o755)
    for name in ("calls", "images"):
        (tmp_path / name).touch()
        monkeypatch.setenv(name.upper(), str(tmp_path / name))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    monkeypatch.setattr(engine, "OWN_SETTINGS", ())
    return lambda: (tmp_path / "calls").read_text().splitlines()


def podman() -> Engine:
    return Engine("podman", dict(os.environ))


def here(tmp_path: Path, image: str, platform: str) -> None:
    with (tmp_path / "images").open("a") as file:
        file.write(f"{image} {platform}\n")


def test_a_machine_that_is_no_linux_gets_no_settings_of_this_one(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "CONTAINERS_CONF" in find_engine(tmp_path / "settings").environment
    monkeypatch.setattr(engine, "HIGHEST_PROCESS", tmp_path / "not" / "there")
    assert "CONTAINERS_CONF" not in find_engine(tmp_path / "settings").environment
    assert calls()[-1] == "CONTAINERS_CONF= info"


@pytest.mark.parametrize(
    ("words", "platform"), [([], "linux/amd64"), (["--platform", "linux/arm64"], "linux/arm64")]
)
def test_images_are_built_for_the_nodes(
    words: list[str], platform: str, tmp_path: Path, calls: Calls
) -> None:
    options = arguments(words)
    build(podman(), tmp_path, Build("serve", "cpu", "base", "1", options.platform), {})
    [line] = [line for line in calls() if " build " in line]
    assert f"--platform {platform} " in line


def test_a_base_of_another_architecture_is_not_taken(tmp_path: Path, calls: Calls) -> None:
    said: list[str] = []
    here(tmp_path, OFFICIAL, "linux/arm64")
    here(tmp_path, STAND_IN, base.OWN)
    assert base_image(podman(), None, said.append, base.OWN) == (
        OFFICIAL if base.OWN == "linux/arm64" else STAND_IN
    )
    assert base_image(podman(), None, said.append, "linux/arm64") == OFFICIAL
    assert f"pull --platform {base.OWN} {OFFICIAL}" in " ".join(calls())


def test_the_stand_in_is_for_this_machine_alone(tmp_path: Path, calls: Calls) -> None:
    here(tmp_path, STAND_IN, base.OWN)
    with pytest.raises(NotPossible, match=f"linux/s390x \\(no such host\\), and this machine, {base.OWN}"):
        base_image(podman(), None, print, "linux/s390x")
    with pytest.raises(NotPossible, match="mine:1 is neither here nor to be pulled for linux/s390x"):
        base_image(podman(), "mine:1", print, "linux/s390x")
