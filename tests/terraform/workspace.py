"""Copies of terraform/ in which terraform may be run: the checkout itself is never touched."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.terraform.stand_in import bindings
from tests.terraform.toolchain import ROOT, Done, Terraform, wheel

SOURCE = ROOT / "terraform"
EXAMPLE = SOURCE / "terraform.tfvars.example"
Json = dict[str, Any]


def sources(folder: Path = SOURCE) -> str:
    """All of its *.tf, one after the other."""
    return "\n".join(file.read_text() for file in sorted(folder.glob("*.tf")))


def resource_types(text: str) -> set[str]:
    return set(re.findall(r'^resource "(google_\w+)"', text, re.MULTILINE))


def copied(to: Path) -> Path:
    """A copy of what is committed of terraform/, below `to`."""
    kept = shutil.ignore_patterns(".terraform*", "*.tfstate*", "terraform.tfvars")
    return Path(shutil.copytree(SOURCE, to, ignore=kept))


def schema(major: str) -> Json:
    """Of the provider and of the resources that terraform/ is made of."""
    return bindings.read(wheel(major), resource_types(sources()))


@dataclass(frozen=True)
class Workspace:
    """folder: a copy of terraform/ that is initialized."""

    folder: Path
    terraform: Terraform

    def init(self) -> Done:
        return self.terraform(self.folder, "init", "-no-color", "-input=false", "-backend=false")

    def validate(self) -> Done:
        return self.terraform(self.folder, "validate", "-no-color")

    def test(self, *files: str) -> Done:
        """terraform test, of all files below tests/ or of these."""
        return self.terraform(self.folder, "test", "-no-color", *(f"-filter=tests/{file}" for file in files))

    def plan(self, **variables: object) -> "Plan":
        """Of an empty project. Raises RuntimeError with what terraform complains of."""
        given = {"project_id": "my-project", **variables}
        (self.folder / "given.auto.tfvars.json").write_text(json.dumps(given))
        options = ("-no-color", "-refresh=false", "-input=false", "-lock=false", "-out=plan")
        for arguments in (("plan", *options), ("show", "-json", "plan")):
            done = self.terraform(self.folder, *arguments)
            if done.code:
                raise RuntimeError(f"terraform {arguments[0]}: {done}")
        return Plan(json.loads(done.printed))

    def edited(self, file: str, old: str, new: str) -> None:
        """Writes `new` for the one `old` in a file. Raises ValueError where it is not there, or more than once."""
        path = self.folder / file
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is {text.count(old)} times in {file}, and should be once")
        path.write_text(text.replace(old, new))


@dataclass(frozen=True)
class Plan:
    """What `terraform show -json` says of a plan: https://developer.hashicorp.com/terraform/internals/json-format"""

    whole: Json

    def of(self, kind: str) -> dict[str, Json]:
        """address -> planned values, of every resource of a type such as google_container_node_pool."""
        planned = self.whole["planned_values"]["root_module"]["resources"]
        return {each["address"]: each["values"] for each in planned if each["type"] == kind}

    def one(self, kind: str) -> Json:
        (values,) = self.of(kind).values()
        return values

    def pools(self) -> dict[str, Json]:
        """name -> planned values of the node pools."""
        return {pool["name"]: pool for pool in self.of("google_container_node_pool").values()}

    def kinds(self) -> dict[str, int]:
        """type -> how many."""
        found: dict[str, int] = {}
        for each in self.whole["planned_values"]["root_module"]["resources"]:
            found[each["type"]] = found.get(each["type"], 0) + 1
        return found

    def output(self, name: str) -> Any:
        return self.whole["planned_values"]["outputs"][name]["value"]

    def actions(self) -> set[tuple[str, ...]]:
        return {tuple(change["change"]["actions"]) for change in self.whole["resource_changes"]}

    def expressions(self, address: str) -> Json:
        """What a resource's arguments are written as: for values that are known only after apply."""
        configured = self.whole["configuration"]["root_module"]["resources"]
        return next(each["expressions"] for each in configured if each["address"] == address)
