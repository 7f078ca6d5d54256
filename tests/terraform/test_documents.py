"""terraform/README.md, docs/cluster.md and the example: what they tell a person to type is there to be typed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.terraform.toolchain import MAJORS, ROOT
from tests.terraform.workspace import EXAMPLE, SOURCE, Plan, sources

PAGES = [SOURCE / "README.md", ROOT / "docs" / "cluster.md"]
TEXT = "\n".join(page.read_text() for page in PAGES)
# name -> what is between the braces.
VARIABLES = dict(re.findall(r'^variable "(\w+)" \{\n((?:(?!\}).*\n)*)\}', sources(), re.MULTILINE))

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_every_output_that_is_asked_for_is_there(planned: Callable[[str, str], Plan]) -> None:
    asked = set(re.findall(r"terraform(?: -chdir=\S+)? output -raw (\w+)", TEXT + sources()))
    assert asked >= {"kustomization", "get_credentials_command", "registry"}
    assert asked <= planned(MAJORS[-1], "defaults").whole["planned_values"]["outputs"].keys()


def test_every_variable_that_is_named_is_there() -> None:
    fields = {
        field for body in VARIABLES.values() for field in re.findall(r"^    (\w+) += ", body, re.MULTILINE)
    }
    named = set(re.findall(r"^(?:# )?(\w+) += ", EXAMPLE.read_text(), re.MULTILINE))
    named |= set(re.findall(r"`(\w+) = [^`]*`", TEXT)) | set(re.findall(r"-var (\w+)=", TEXT))
    assert named >= {"project_id", "serve_pool", "deletion_protection", "cloud_nat"}
    assert named - VARIABLES.keys() - fields == set()


def test_nothing_but_the_project_has_to_be_given() -> None:
    assert len(VARIABLES) > 15
    needed = [name for name, body in VARIABLES.items() if not re.search(r"^  default +=", body, re.MULTILINE)]
    assert needed == ["project_id"]


def test_the_example_is_a_cluster(planned: Callable[[str, str], Plan]) -> None:
    pools = planned(MAJORS[-1], "example").pools()
    assert pools.keys() == {"cpu", "serve-l4", "train-l4"}
    assert pools["serve-l4"]["autoscaling"][0]["total_max_node_count"] == 3


@each_page
def test_it_says_at_its_top_that_no_cloud_has_seen_it(page: Path) -> None:
    assert re.search(r"\*\*.*never.*cloud.*\*\*", page.read_text().splitlines()[2], re.IGNORECASE)


@each_page
def test_every_file_that_is_linked_or_run_is_there(page: Path) -> None:
    linked = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert linked
    for path in linked:
        assert (page.parent / path).exists(), f"{page.name}: {path}"
    for script in re.findall(r"python3 (?:\.\./)?(scripts/\S+\.py)", page.read_text()):
        assert (ROOT / script).exists(), script
