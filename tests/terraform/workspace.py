"""Copies of terraform/ in which terraform may be run: the checkout itself is never touched."""

import json
import re
import shutil
from collections.abc import Iterator
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


def ignored(text: str) -> dict[str, set[str]]:
    """type.name of a resource -> its ignore_changes. The plan says nothing of it, so it is read from the source."""
    bodies = re.findall(r'^resource "(\w+)" "(\w+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL)
    found = {
        f"{kind}.{name}": re.search(r"^ +ignore_changes = \[(.*)\]$", body, re.MULTILINE)
        for kind, name, body in bodies
    }
    return {address: set(filter(None, match[1].split(", "))) for address, match in found.items() if match}


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

    def configured(self) -> dict[str, Json]:
        """address, without an index -> what is written of every resource."""
        return {each["address"]: each for each in self.whole["configuration"]["root_module"]["resources"]}

    def expressions(self, address: str) -> Json:
        """What a resource's arguments are written as: for values that are known only after apply."""
        return self.configured()[address]["expressions"]

    def after(self, address: str) -> set[str]:
        """The resources that are made before this one: those that it names, or depends on, and theirs."""
        written = self.configured()
        found: set[str] = set()
        ahead = [address]
        while ahead:
            one = written[ahead.pop()]
            named = {*one.get("depends_on", []), *_references(one.get("expressions", {}))}
            new = {
                each
                for name in named
                for each in written
                if name == each or name.startswith((f"{each}.", f"{each}["))
            }
            ahead += new - found
            found |= new
        return found


def _references(written: Any) -> Iterator[str]:
    """Everything that arguments name, however deep."""
    if isinstance(written, list):
        for each in written:
            yield from _references(each)
    elif isinstance(written, dict):
        for key, each in written.items():
            yield from each if key == "references" else _references(each)
