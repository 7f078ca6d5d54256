"""Whatever a manifest holds, the command says in one line what is wrong with it, and where."""

import io
import sys
from pathlib import Path

import pytest

from jaxport.cluster.manifests import read_manifests
from tests.jaxport.cluster.conftest import Done, Run

META = "metadata: {name: a, labels: {app.kubernetes.io/component: train}}\n"
JOB = f"apiVersion: batch/v1\nkind: Job\n{META}"
DEPLOYMENT = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n"
CONFIG = "apiVersion: v1\nkind: ConfigMap\n"
FANOUT = "".join(
    f"{name}: &{name} [{', '.join([f'*{one}'] * 9)}]\n" for one, name in zip("abcde", "bcdef", strict=True)
)
NEEDS_TEXT = "needed: text; quote it"


def job(containers: str, more: str = "") -> str:
    return f"{JOB}spec: {{template: {{{more}spec: {{containers: {containers}}}}}}}\n"


def one(fields: str) -> str:
    return job(f"[{{name: train, {fields}}}]")


STRANGE = {
    "a key that is a list": ("? [a, b]\n: 1\n", "document 1: line 1: a list as a key; needed: text"),
    "a key that is a mapping": ("? {a: b}\n: 1\n", "a mapping as a key"),
    "a key that is a number": (f"{CONFIG}metadata: {{name: a}}\ndata: {{80: b}}\n", "line 4: the key 80 is an int"),
    "a key that is a bool": (f"{CONFIG}metadata: {{name: a}}\ndata: {{on: b}}\n", "the key on is a bool"),
    "a date": (f"{CONFIG}metadata: {{name: a, annotations: {{at: 2026-01-02}}}}\n", "2026-01-02 is a date, which JSON has not; quote it"),
    "a date that is none": ("a: 2026-13-45\n", "2026-13-45 is a date, which JSON has not"),
    "binary": ("a: !!binary |\n  aGk=\n  aGk=\n", "aGk= aGk= is a binary, which JSON has not"),
    "a set": ("a: !!set {x}\n", "a set is nothing that JSON has"),
    "not a number": ("a: .nan\n", ".nan is no float that JSON has; quote it"),
    "an int that is none": ("a: 0b_\n", "0b_ is no int that JSON has"),
    "a long int": (f"a: {'9' * 5000}\n", "is no int that JSON has"),
    "a bool that is none": ("a: !!bool x\n", "x is no bool that JSON has"),
    "an alias of itself": ("a: &a [*a]\n", "an alias of what it is part of has no end"),
    "aliases of aliases": (f"a: &a [1, 2]\n{FANOUT}", "more than 100,000 values with its aliases written out"),
    "aliases of a long text": (f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 1000)}]\n", "more than 100,000 values"),
    "a merge of a number": ("<<: 5\n", "no YAML: "),
    "deep": ("[" * 5000, "no YAML: "),
    "deep but allowed by YAML": ("- " * 200 + "a\n", "more than 100 levels"),
    "a list of a number": ("apiVersion: v1\nkind: List\nitems: 5\n", "document 1: List: items: found 5; needed: a list"),
    "a list of numbers": ("apiVersion: v1\nkind: List\nitems: [5]\n", "document 1, item 1: without apiVersion"),
    "the second document": (f"{CONFIG}metadata: {{name: a}}\n---\n5\n", "document 2: without apiVersion"),
    "a name that is a number": (f"{CONFIG}metadata: {{name: 5}}\n", "without apiVersion, kind or metadata.name, as text"),
    "a name that is a path": (f"{CONFIG}metadata: {{name: ../b}}\n", 'metadata.name: found "../b"'),
    "a version that is a path": ("apiVersion: ../v1\nkind: Job\nmetadata: {name: a}\n", 'apiVersion: found "../v1"'),
    "a namespace that is a list": (f"{CONFIG}metadata: {{name: a, namespace: [b]}}\n", 'ConfigMap a: metadata.namespace: found ["b"]; needed: at most 63'),
    "a namespace that is a path": (f"{CONFIG}metadata: {{name: a, namespace: a/b}}\n", 'metadata.namespace: found "a/b"'),
    "labels that are a list": (f"{CONFIG}metadata: {{name: a, labels: [b]}}\n", 'ConfigMap a: metadata.labels: found ["b"]; needed: a mapping'),
    "a label that is a number": (f"{CONFIG}metadata: {{name: a, labels: {{b: 1}}}}\n", f"metadata.labels.b: found 1; {NEEDS_TEXT}"),
    "an annotation that is a bool": (f"{CONFIG}metadata: {{name: a, annotations: {{b: yes}}}}\n", f"metadata.annotations.b: found true; {NEEDS_TEXT}"),
    "a Job without a spec": (JOB, "Job a: spec: found nothing; needed: a mapping"),
    "a Job without a template": (f"{JOB}spec: {{}}\n", "Job a: spec.template: found nothing"),
    "a template without a spec": (f"{JOB}spec: {{template: {{spec: [1]}}}}\n", "spec.template.spec: found [1]"),
    "a template's labels": (job("[{name: train}]", "metadata: {labels: 5}, "), "spec.template.metadata.labels: found 5"),
    "a template's metadata": (job("[{name: train}]", "metadata: 5, "), "spec.template.metadata: found 5"),
    "no container": (job("[]"), "spec.template.spec.containers: found []; needed: a list of containers"),
    "containers as a mapping": (job("{a: b}"), "spec.template.spec.containers: found {"),
    "a container without a name": (job("[{image: x}]"), "containers[0].name: found nothing; needed: text"),
    "a container that is null": (job("[{name: train}, null]"), "containers[1]: found nothing; needed: a container"),
    "a number in args": (one("args: [train, --steps, 5]"), f"containers[train].args[2]: found 5; {NEEDS_TEXT}"),
    "args that are text": (one("args: train"), 'containers[train].args: found "train"; needed: a list of text'),
    "a number in command": (one("command: [1]"), "containers[train].command[0]: found 1"),
    "an image that is a number": (one("image: 1"), "containers[train].image: found 1"),
    "env that is text": (one("env: x"), 'containers[train].env: found "x"'),
    "a variable that is text": (one("env: [x]"), 'containers[train].env[0]: found "x"'),
    "a variable that is a number": (one("env: [{name: x, value: 1}]"), f"containers[train].env[x].value: found 1; {NEEDS_TEXT}"),
    "init containers": (f"{JOB}spec: {{template: {{spec: {{containers: [{{name: train}}], initContainers: [5]}}}}}}\n", "initContainers[0]: found 5"),
    "a Deployment without a container": (f"{DEPLOYMENT}spec: {{template: {{spec: {{containers: [null]}}}}}}\n", "Deployment a: spec.template.spec.containers[0]: found nothing"),
}  # fmt: skip
FLAGS = ("--run", "other", "--steps", "5", "--set", "seed=1", "--tag", "x")


def refused(done: Done, said: str) -> None:
    assert done.code == 2 and said in done.error, done
    assert len(done.err.splitlines()) == 1, done.err


@pytest.mark.parametrize(("text", "said"), STRANGE.values(), ids=STRANGE.keys())
def test_what_is_strange_is_named(text: str, said: str, run: Run, cluster, tmp_path: Path) -> None:
    file = tmp_path / "strange.yaml"
    file.write_text(text)
    for more in ((), ("--dry-run",), ("--dry-run", *FLAGS)):
        done = run("submit", "all", "--manifests", str(file), *more)
        refused(done, said)
        assert done.error.startswith(str(file))
    assert cluster.requests == []


@pytest.mark.parametrize("data", [b"\xff\xfe", "a: ä".encode("latin-1")])
def test_what_is_no_utf_8_is_named(
    data: bytes, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_bytes(data)
    refused(
        run("submit", "all", "--manifests", str(tmp_path / "a.yaml")), f"{tmp_path}/a.yaml: no UTF-8 at byte"
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    refused(run("submit", "all", "--manifests", "-"), "--manifests -: no UTF-8 at byte")


def test_what_is_no_file_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "long.yaml").open("wb") as file:
        file.truncate(17 << 20)
    for path in (tmp_path / "long.yaml", tmp_path / ("x" * 5000)):
        refused(run("submit", "all", "--manifests", str(path)), str(path))
    monkeypatch.setattr(sys, "stdin", None)
    refused(run("submit", "all", "--manifests", "-"), "standard input is closed")


def test_what_is_null_is_not_there(run: Run, tmp_path: Path) -> None:
    meta = "metadata: {name: a, namespace: null, annotations: null, labels: {app.kubernetes.io/component: train}}"
    text = f"apiVersion: batch/v1\nkind: Job\n{meta}\nspec: {{template: {{metadata: null, spec: {{containers: [{{name: train, args: null}}]}}}}}}"
    (tmp_path / "a.yaml").write_text(text)
    done = run("submit", "train", "--manifests", str(tmp_path / "a.yaml"), "--dry-run", *FLAGS)
    assert done.code == 0 and "name: a-other" in done.out and "null" not in done.out


def test_what_one_alias_stands_for_is_changed_for_itself(tmp_path: Path) -> None:
    text = f"{CONFIG}metadata: &meta {{name: a, labels: &labels {{b: c}}}}\ndata: *labels\n"
    (tmp_path / "a.yaml").write_text(text)
    (found,) = read_manifests(str(tmp_path / "a.yaml"))
    assert found["data"] == {"b": "c"} and found["data"] is not found["metadata"]["labels"]


def test_kinds_that_nobody_knows_are_left_alone(run: Run, tmp_path: Path) -> None:
    text = "apiVersion: a.example/v1\nkind: Other\nmetadata: {name: a}\nspec: {template: {spec: {containers: [null, 5]}}}\n"
    (tmp_path / "a.yaml").write_text(text)
    done = run("submit", "all", "--manifests", str(tmp_path / "a.yaml"), "--dry-run", "--tag", "x")
    assert done.code == 0 and "kind: Other" in done.out
