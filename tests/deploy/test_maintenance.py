"""The pod of deploy/optional/maintenance, and what docs/operations.md and docs/monitoring.md tell people to do in it."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.deploy.objects import DEPLOY, ROOT, Object, parsed, plain
from tests.deploy.operations import MONITORING, OPERATIONS, blocks
from tests.deploy.policies import POLICIES
from tests.deploy.policies.commands import options
from tests.deploy.schemas import VERSIONS, problems

FILE = DEPLOY / "optional" / "maintenance" / "pod.yaml"
VOLUME = re.compile(r"/work(/|$)")


def pod() -> Object:
    [found] = parsed(FILE.read_text())
    return found


def as_job(found: Object) -> Object:
    """The policies know pods by what makes them; this one ends as a Job's does."""
    template = {"metadata": found["metadata"], "spec": found["spec"]}
    spec = {"activeDeadlineSeconds": found["spec"]["activeDeadlineSeconds"], "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": found["metadata"], "spec": spec}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_a_pod_that_kubernetes_knows(version: str) -> None:
    assert list(problems(pod(), version)) == []


def test_it_breaks_the_rules_that_are_for_stages_and_no_other() -> None:
    together = [*plain(), as_job(pod())]
    broken = {policy.__name__: list(policy(together)) for policy in POLICIES}
    assert {name for name, said in broken.items() if said} == {
        "commands_are_the_images",  # it waits, in place of jaxport
        "arguments_parse",
        "jobs_end",  # no Job, but a pod that nobody makes again
        "failures_are_told_apart",
        "clients_alone_call_servers",  # no stage, so network.yaml takes it for a client
    }
    assert all("maintenance" in said for found in broken.values() for said in found)


def test_it_ends_by_itself_and_writes_to_the_volume_without_a_gpu() -> None:
    spec = pod()["spec"]
    [container] = spec["containers"]
    assert 0 < spec["activeDeadlineSeconds"] <= 4 * 3600 and "four hours" in OPERATIONS
    [mount] = [each for each in container["volumeMounts"] if each["mountPath"] == "/work"]
    assert not mount.get("readOnly") and "nvidia.com/gpu" not in container["resources"]["limits"]


def catches_sigterm(process: int) -> bool:
    [mask] = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="a container's kernel is Linux")
def test_its_command_waits_and_ends_at_once_when_it_is_told_to() -> None:
    """As first of a process namespace where the machine allows one: a kernel keeps signals without a handler from it."""
    command = pod()["spec"]["containers"][0]["command"]
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        apart = []
    process = subprocess.Popen([*apart, *command])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        until = time.monotonic() + 20
        waiting = None
        while not (waiting and catches_sigterm(waiting)):
            assert process.poll() is None and time.monotonic() < until, "SIGTERM has no handler"
            time.sleep(0.05)
            waiting = int(children.read_text() or 0) if apart else process.pid
        os.kill(waiting, signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()


def commands() -> list[list[str]]:
    """What is run in the pod, as the documents have it: in blocks, and in the text of the runbook."""
    lines = [line for block in blocks(OPERATIONS) for line in block if "exec maintenance" in line]
    lines += [" ".join(each.split()) for each in re.findall(r"`([^`]*exec maintenance[^`]*)`", MONITORING)]
    found = [shlex.split(line) for line in lines]
    return [words[words.index("--") + 1 : (words.index(">") if ">" in words else None)] for words in found]


def test_what_is_run_in_it_is_what_the_command_takes() -> None:
    ours = [words[1:] for words in commands() if words[0] == "jaxport"]
    assert {words[0] for words in ours} == {"promote", "verify", "inspect", "data"}
    for words in ours:
        given = vars(options(words))
        # The default is below the folder that one stands in.
        place = {"promote": "models", "data": "out"}.get(words[0], "bundle")
        assert VOLUME.match(str(given[place])), words


def test_a_command_that_jaxport_does_not_take_is_found() -> None:
    with pytest.raises(ValueError, match="unrecognized arguments: --back"):
        options(["promote", "tiny", "--label", "stable", "--back"])


def test_folders_are_moved_and_copied_as_the_document_says(tmp_path: Path) -> None:
    """The lines of coreutils and tar, on a folder in place of the volume."""
    for name in ("models/tiny/5", "models/NAME/1", "incoming/tiny-3", "runs/tiny"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text(name)
    for words in commands():
        if words[0] == "jaxport":
            continue
        here = [VOLUME.sub(rf"{tmp_path}\1", word) for word in words]
        subprocess.run(here, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "removed/tiny-5/manifest.json").read_text() == "models/tiny/5"
    assert (tmp_path / "removed/NAME/1/manifest.json").exists() and not (tmp_path / "models/NAME").exists()
    assert (tmp_path / "models/tiny/6/manifest.json").read_text() == "incoming/tiny-3"
    assert not (tmp_path / "models/tiny/5").exists() and not (tmp_path / "incoming/tiny-3").exists()


def test_every_section_that_the_runbook_names_is_there() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lower()).strip().replace(" ", "-")
        for line in re.findall(r"^## (.*)$", OPERATIONS, re.MULTILINE)
    }
    named = set(re.findall(r"operations\.md#([\w-]+)", MONITORING))
    assert {"on-the-volume", "another-jax"} <= named <= headings
    costs = (ROOT / "terraform" / "README.md").read_text()
    assert "terraform/README.md#what-it-costs" in OPERATIONS and "## What it costs\n" in costs
