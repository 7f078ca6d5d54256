"""terraform/ as terraform itself reads it, with the schema of either major version of the provider."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.terraform import workspace
from tests.terraform.conftest import Makes
from tests.terraform.toolchain import MAJORS, Terraform
from tests.terraform.workspace import Workspace

# What `terraform init` says where the registry, or the place it sends one to for the provider itself, cannot be reached.
UNREACHABLE = re.compile(
    r"could not connect to registry|failed to request discovery document|could not query provider registry"
    r"|Error while installing hashicorp/google"
)
RUN = re.compile(
    r'^run "(\w+)" \{.*?^  variables \{\n(.*?)^  \}\n\n  expect_failures = \[(.*?)\]', re.M | re.S
)


def test_it_is_formatted_as_terraform_does(make_workspace: Makes) -> None:
    made = make_workspace()
    done = made.terraform(made.folder, "fmt", "-check", "-recursive", "-no-color")
    assert done.code == 0, f"terraform fmt puts it right: {done}"


@pytest.mark.parametrize("major", MAJORS)
def test_it_is_valid_and_passes_its_own_tests(make_workspace: Makes, major: str) -> None:
    made = make_workspace(major)
    done = made.validate()
    assert done.code == 0, done
    done = made.test()
    assert done.code == 0, done
    assert re.search(r"Success! [1-9]\d+ passed, 0 failed", done.printed), done


@pytest.mark.parametrize("major", MAJORS)
def test_with_the_provider_itself_where_a_registry_can_be_reached(tmp_path: Path, major: str) -> None:
    """It knows what the stand-in does not: values, and what conflicts with what. Nothing is asked of a cloud."""
    config = tmp_path / "cli.tfrc"
    config.write_text("")
    made = Workspace(workspace.copied(tmp_path / "terraform"), Terraform(config, tmp_path))
    made.edited("versions.tf", '">= 7.46, < 9"', f'"~> {major}.0"')
    done = made.init()
    if done.code and UNREACHABLE.search(" ".join(done.complained.split())):
        pytest.skip("no provider registry can be reached from here: the stand-in alone has seen terraform/")
    assert done.code == 0, done
    done = made.validate()
    assert done.code == 0, done
    done = made.test()
    assert done.code == 0, done


def refused() -> list[tuple[str, str, str]]:
    """Of each run of refusals.tftest.hcl: its name, its variables, and what is expected to fail."""
    return RUN.findall((workspace.SOURCE / "tests" / "refusals.tftest.hcl").read_text())


def test_every_rule_is_what_refuses_something(tmp_path: Path, stand_in: Callable[[str], Workspace]) -> None:
    """No rule could go without a run of refusals.tftest.hcl failing: each alone refuses at least one.

    Of the rules of variables. They are planned without the resources, so without a provider: 40 plans in seconds.
    """
    made = Workspace(tmp_path, stand_in(MAJORS[-1]).terraform)
    text = (workspace.SOURCE / "variables.tf").read_text()
    (tmp_path / "variables.tf").write_text(text)
    alone: set[int] = set()
    runs = [(name, given) for name, given, expected in refused() if "var." in expected]
    assert len(runs) >= 35
    for name, given in runs:
        project = "" if "project_id" in given else 'project_id = "my-project"\n'
        (tmp_path / "given.auto.tfvars").write_text(project + given)
        done = made.terraform(tmp_path, "plan", "-json", "-input=false", "-lock=false")
        messages = [json.loads(line) for line in done.printed.splitlines()]
        complaints = [each["diagnostic"]["detail"] for each in messages if each["@level"] == "error"]
        rules = [int(line) for each in complaints for line in re.findall(r"at variables\.tf:(\d+),", each)]
        assert done.code == 1 and rules, f"{name}: {complaints}"
        if len(rules) == 1:
            alone.add(rules[0])
    every = {number for number, line in enumerate(text.splitlines(), start=1) if line == "  validation {"}
    assert every == alone, (
        f"at these lines of variables.tf are rules that never decide: {sorted(every - alone)}"
    )
