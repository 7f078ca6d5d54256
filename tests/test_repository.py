"""What is committed: locks that match pyproject.toml, and nothing of the machine it was made on."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
# Of venvs that have nothing but what a group asks for.
GROUPS = ("conformance", "terraform", "checkov", "google-7", "google-8")
# Of venvs that have jaxport's own extras: the oldest versions that they allow, and what the formats need beside them.
EXTRAS = {"oldest": ("train", "export", "serve"), "formats": ("train", "export")}
IMAGES = [lock for lock in LOCKS if lock.stem not in ("dev", "build", *GROUPS, *EXTRAS)]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)", re.MULTILINE)


def pins(lock: Path) -> dict[str, str]:
    return {name.lower().replace("_", "-"): version for name, version in PINNED.findall(lock.read_text())}


def requirements(*extras: str) -> list[Requirement]:
    """What the base install and these extras ask for, jaxport's own extras resolved."""
    found = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            needed = Requirement(text)
            found += requirements(*needed.extras) if needed.name == "jaxport" else [needed]
    return found


def asked_of(lock: Path) -> list[Requirement]:
    if lock.stem == "build":
        return [Requirement(text) for text in PYPROJECT["build-system"]["requires"]]
    if lock.stem in GROUPS:
        return [Requirement(text) for text in PYPROJECT["dependency-groups"][lock.stem]]
    beside = [Requirement(text) for text in PYPROJECT["dependency-groups"].get(lock.stem, ())]
    return requirements(*extras_of(lock)) + beside


def extras_of(lock: Path) -> tuple[str, ...]:
    if lock.stem == "dev":
        return ("dev",)
    if lock.stem in EXTRAS:
        return EXTRAS[lock.stem]
    room, _, accelerator = lock.stem.partition("-")
    return (room,) if accelerator == "cpu" else (room, accelerator)


def test_there_is_a_lock_for_development_for_each_group_and_per_image_and_accelerator() -> None:
    images = {f"{room}-{kind}" for room in ("train", "export", "serve") for kind in ("cpu", "cuda12")}
    assert {lock.stem for lock in LOCKS} == images | {"dev", "build", *GROUPS, *EXTRAS}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_answers_what_pyproject_asks_for(lock: Path) -> None:
    """`make lock` puts it right."""
    locked = pins(lock)
    for needed in asked_of(lock):
        name = needed.name.lower().replace("_", "-")
        assert name in locked, f"{name} is not in {lock.name}"
        assert needed.specifier.contains(locked[name], prereleases=True), (
            f"{needed} but {locked[name]} is locked"
        )


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_hashes_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text and "--index" not in text
    for entry in re.split(r"\n(?=\S)", text.strip()):
        if not entry.startswith("#"):
            assert "--hash=sha256:" in entry, entry.splitlines()[0]


@pytest.mark.parametrize("kind", ["cpu", "cuda12"])
def test_the_serving_image_has_no_model_library(kind: str) -> None:
    assert (
        pins(ROOT / "locks" / f"serve-{kind}.txt").keys() & {"flax", "optax", "tensorflow", "scikit-learn"}
        == set()
    )


def test_the_oldest_versions_are_those_that_pyproject_names() -> None:
    """A bound that nobody has installed is a guess. (Of gRPC it is the protobuf that bounds what can be installed.)"""
    locked = pins(ROOT / "locks" / "oldest.txt")
    of_jax = {"jax", "flax", "optax", "orbax-checkpoint"}
    for needed in requirements(*EXTRAS["oldest"]):
        if needed.name in of_jax:
            assert f">={locked[needed.name]}" in str(needed.specifier).split(","), needed


@pytest.mark.parametrize("lock", IMAGES, ids=lambda lock: lock.stem)
def test_an_image_has_the_versions_that_the_tests_ran_with(lock: Path) -> None:
    tested = pins(ROOT / "locks" / "dev.txt")
    for name, version in pins(lock).items():
        assert tested.get(name, version) == version


def test_what_make_test_leaves_out_has_a_target_that_ci_runs() -> None:
    recipes = re.findall(r"^(test-[a-z]+):.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    settings = PYPROJECT["tool"]["pytest"]["ini_options"]
    for folder in settings["norecursedirs"]:
        if folder.startswith("tests/"):
            assert [name for name, recipe in recipes if folder in recipe.split()] != [], folder
            assert (ROOT / folder).is_dir(), folder
    run_by_ci = re.findall(r"^make (test-[a-z]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert sorted(run_by_ci) == sorted(name for name, _ in recipes)


def test_nothing_committed_knows_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = [ROOT / name for name in listed.stdout.split() if not name.startswith("locks/")]
    if not files:
        pytest.skip("not a git checkout")
    home = re.compile(r"/(?:root|home/[a-z]+|Users/[A-Za-z]+)/|/work/(?:main|shared)")
    for file in files:
        if file.is_file() and file != Path(__file__):
            assert not home.search(file.read_text(errors="replace")), file


@pytest.mark.parametrize(
    "name", [".venv", ".venv-conformance", ".venv-terraform", ".venv-checkov", ".venv-oldest"]
)
def test_a_venv_that_is_a_link_is_ignored_too(name: str) -> None:
    """A pattern that ends with a slash is for folders alone; what is not there is none."""
    command = ["git", "check-ignore", "--no-index", "--verbose", f"docs/{name}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert said.startswith(".gitignore:"), said  # and not by what this clone alone excludes
