"""The commands of docs/operations.md and deploy/README.md, read as a person types them."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.deploy.objects import DEPLOY, ROOT, Object, Objects, named, pods
from tests.deploy.policies.stages import COMPONENT

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
README = (DEPLOY / "README.md").read_text()
MONITORING = (ROOT / "docs" / "monitoring.md").read_text()
REQUIREMENT = re.compile(r"^(?P<key>[\w./-]+) (?P<operator>in|notin) \((?P<values>[\w,-]+)\)$")
SECONDS = {"s": 1, "m": 60, "h": 3600}


def blocks(text: str) -> list[list[str]]:
    """The command lines of each indented or fenced block, without their comments."""
    fenced = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(
        r"(?:^    [^\n]*\n)+", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return [
        [line.split("  #")[0].strip() for line in block.splitlines() if line.strip()]
        for block in fenced + indented
    ]


def kubectl_lines(block: Sequence[str]) -> Iterator[list[str]]:
    for line in block:
        for part in line.split("&&"):
            words = shlex.split(part)
            if words[:1] == ["kubectl"]:
                yield words


def selects(selector: str, each: Object) -> bool:
    """Kubernetes' set-based requirement: what lacks the key is in no set. Raises ValueError for another form."""
    found = REQUIREMENT.match(selector)
    if not found:
        raise ValueError(f"{selector}: needed: key in (a,b), or key notin (a,b)")
    value = each["metadata"].get("labels", {}).get(found["key"])
    inside = value is not None and value in found["values"].split(",")
    return inside if found["operator"] == "in" else not inside


@dataclass(frozen=True)
class Apply:
    source: str
    selector: str | None

    def of(self, objects: Objects) -> list[Object]:
        return [each for each in objects if self.selector is None or selects(self.selector, each)]


def applies(block: Sequence[str]) -> list[Apply]:
    found = []
    for words in kubectl_lines(block):
        if words[1] == "apply":
            selector = words[words.index("-l") + 1] if "-l" in words else None
            found.append(Apply(words[3], selector))
    return found


def staged() -> list[list[Apply]]:
    """The blocks that bring the stages up one after another."""
    found = [applies(block) for text in (OPERATIONS, README) for block in blocks(text)]
    return [steps for steps in found if len(steps) == 3 and steps[0].selector]


def foreign(text: str) -> list[str]:
    """What is applied or deleted that is neither the reader's overlay nor something beside it, such as a Job for once."""
    sources = re.findall(r"kubectl\s+(?:apply|delete)\s+-[fk]\s+([^\s`)]+)", text)
    ours = re.compile(r"-|deploy/(overlays/(mine|ours)|optional/.*|00-namespace\.yaml)")
    return [source for source in sources if not ours.fullmatch(source)]


def misplaced(steps: Sequence[Apply], objects: Objects) -> Iterator[str]:
    """What is left out at the end, and who gets a GPU before the stage that it waits for."""
    applied = [step.of(objects) for step in steps]
    left = [named(each) for each in objects if not any(each in step for step in applied)]
    if left:
        yield f"never applied: {left}"
    for number, stages in enumerate(({"train", "export"}, {"train", "export", "warm"})):
        here = {pod.labels.get(COMPONENT) for pod in pods(applied[number])}
        for early in (here - stages) & {"warm", "serve"}:
            yield f"step {number + 1} brings {early}"
        for late in stages - here:
            yield f"step {number + 1} does not bring {late}"


def impatient(block: Sequence[str], deadlines: dict[str, int]) -> Iterator[str]:
    """Waits that give up before what they wait for has to. deadlines: seconds from an apply, by Job."""
    steps = applies(block)
    # The warm Job alone: the bundle is there.
    alone = bool(steps) and all(step.selector and "notin" not in step.selector for step in steps[:1])
    passed = deadlines["jaxport-export"] if alone else 0
    for words in kubectl_lines(block):
        if "rollout" in words and passed == 0 and any("job/jaxport-train" in line for line in block):
            yield "rollout status before there is a bundle: it gives up after progressDeadlineSeconds"
        if "wait" not in words:
            continue
        job = next((word.removeprefix("job/") for word in words if word.startswith("job/")), None)
        timeout = next(word.partition("=")[2] for word in words if word.startswith("--timeout"))
        if job in deadlines:
            given, needed = int(timeout[:-1]) * SECONDS[timeout[-1]], max(deadlines[job] - passed, 0)
            if given < needed:
                yield f"--timeout={timeout} for {job}, which may take {needed} seconds"
            passed = max(passed, deadlines[job])
