"""What is changed between runs, on the manifests' own objects."""

import pytest

from jaxport.cluster.changes import Changes, changed
from jaxport.cluster.errors import UsageError
from jaxport.cluster.stages import container_of, jobs_of, run_of
from tests.deploy.kubectl import kustomized
from tests.deploy.objects import DEPLOY, Object, parsed, plain
from tests.deploy.policies import POLICIES
from tests.jaxport.cluster.conftest import Run


def jobs(changes: Changes) -> list[Object]:
    changes.check("all")
    return jobs_of(changed(plain(), changes))


def args(job: Object) -> str:
    return " ".join(container_of(job)["args"])


def names(objects: list[Object]) -> list[str]:
    return [each["metadata"]["name"] for each in objects]


@pytest.mark.parametrize("changes", [Changes(), Changes(run="tiny"), Changes(preset="tiny")])
def test_the_manifests_own_run_is_the_manifests(changes: Changes) -> None:
    assert changed(plain(), changes) == plain()


def test_another_run_has_jobs_of_its_own_beside_the_first() -> None:
    train, export, warm = jobs(Changes(run="bard"))
    assert names([train, export, warm]) == ["jaxport-train-bard", "jaxport-export-bard", "jaxport-warm"]
    assert args(train).endswith("--run bard") and "--run bard --wait" in args(export)
    for job in (train, export):
        assert run_of(job) == "bard"
        for labelled in (job, job["spec"]["template"]):
            assert labelled["metadata"]["labels"]["app.kubernetes.io/instance"] == "bard"
    assert "app.kubernetes.io/instance" not in warm["metadata"]["labels"]


def test_another_preset_is_another_run_unless_it_is_named() -> None:
    train, export, _ = jobs(Changes(preset="nano"))
    assert names([train, export]) == ["jaxport-train-nano", "jaxport-export-nano"]
    assert args(train) == "train --preset nano --root /work" and run_of(export) == "nano"
    train, export, _ = jobs(Changes(preset="nano", run="tiny"))
    assert names([train, export]) == ["jaxport-train", "jaxport-export"]
    assert args(train) == "train --preset nano --root /work --run tiny" and run_of(export) == "tiny"


def test_settings_replace_their_namesakes_and_no_others() -> None:
    (first,) = [
        each
        for each in jobs(Changes(settings={"seed": "1", "batch_size": "8"}))
        if run_of(each) and "train" in args(each)[:5]
    ]
    again = changed([first], Changes(steps="20", settings={"seed": "2"}))
    assert args(again[0]) == "train --preset tiny --root /work --set batch_size=8 --steps 20 --set seed=2"


def test_a_model_of_ones_own_gives_way_to_a_preset() -> None:
    (train, *_) = jobs(Changes())
    container_of(train)["args"] = ["train", "--model=mine:factory", "--run", "mine"]
    (made,) = changed([train], Changes(preset="nano"))
    assert args(made) == "train --run nano --preset nano"


def test_images_come_from_another_registry() -> None:
    made = changed(plain(), Changes(registry="registry.example.com:5000/jaxport", tag="0.2.0-cpu"))
    images = {
        c["image"]
        for each in made
        if "template" in each.get("spec", {})
        for c in each["spec"]["template"]["spec"]["containers"]
    }
    assert images == {
        f"registry.example.com:5000/jaxport/{name}:0.2.0-cpu" for name in ("train", "export", "serve")
    }
    server = next(each for each in made if each["kind"] == "Deployment")
    envoy = server["spec"]["template"]["spec"]["initContainers"][0]
    assert envoy["image"].startswith("docker.io/envoyproxy/")


@pytest.mark.parametrize(
    "registry", ["localhost", "localhost/jaxport", "127.0.0.1:5000", "europe-west4-docker.pkg.dev/my-project/a_b/c--d", "quay.io/a/b.c__d"]
)  # fmt: skip
def test_registries_as_they_are_named(registry: str) -> None:
    Changes(registry=registry).check("all")


@pytest.mark.parametrize("overlay", [None, "cpu", "multi-host"])
def test_whatever_is_changed_keeps_the_policies_of_deploy(overlay: str | None) -> None:
    """Arguments parse, names are short enough, the processes of a training find each other."""
    changes = Changes(run="b" * 30, preset="nano", steps="20", settings={"seed": "3"})
    objects = plain() if overlay is None else parsed(kustomized(DEPLOY / "overlays" / overlay))
    made = changed(objects, changes)
    assert [said for policy in POLICIES for said in policy(made)] == []


def test_processes_of_a_run_look_for_their_own_first_one() -> None:
    objects = parsed(kustomized(DEPLOY / "overlays" / "multi-host"))
    (train,) = jobs_of(changed(objects, Changes(run="bard")), "train")
    address = next(v["value"] for v in container_of(train)["env"] if v["name"] == "JAX_COORDINATOR_ADDRESS")
    assert address == "jaxport-train-bard-0.jaxport-train:8476"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "--run", "My_Run"), "--run 'My_Run': needed: lower-case letters"),
        (("train", "--run", "x" * 40), "which is 54 letters"),
        (("train", "--preset", "huge"), "--preset huge: one of"),
        (("train", "--set", "learning_rat=1"), "--set learning_rat: no such setting"),
        (("train", "--set", "seed"), "needed: KEY=VALUE"),
        (("train", "--steps", "0"), "--steps: found '0'"),
        (("export", "--steps", "10"), "are of train"),
        (("warm", "--run", "tiny"), "--run: warm compiles for every bundle"),
        (("train", "--tag", "a b"), "--tag 'a b'"),
        *((("train", "--registry", wrong), f"--registry {wrong!r}: needed: HOST") for wrong in (
            "https://x y", "a//b:::c", "a/b:5", "a/", "/a", "a:", "a:b", "a..b", "a/-b", "A", "",
        )),
        (("train", "--tag", "ü"), "--tag 'ü': needed: at most 128 letters"),
        (("train", "--manifests", "none.yaml"), "none.yaml: no such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_any_cluster_is_asked(
    arguments: tuple[str, ...], said: str, run: Run, cluster
) -> None:
    done = run("submit", *arguments)
    assert done.code == 2 and said in done.error
    assert cluster.requests == []


def test_a_dry_run_prints_what_would_be_created_and_asks_nobody(run: Run, cluster) -> None:
    done = run("submit", "all", "--dry-run", "--run", "bard")
    assert done.code == 0 and parsed(done.out) == changed(plain(), Changes(run="bard"))
    assert cluster.requests == []


def test_a_stage_that_the_manifests_lack_is_named(run: Run) -> None:
    done = run("submit", "train", "--manifests", str(DEPLOY / "stage-2-export.yaml"))
    assert done.code == 2 and done.error.endswith("there: export")
    with pytest.raises(UsageError):
        Changes(run="x" * 64 + "!").check("train")
