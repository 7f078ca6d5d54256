"""Faults planted into the objects of deploy/, one at a time: each check has to find the one that it is there for."""

import pytest

from tests.deploy.faults import FAULTS
from tests.deploy.faults.planted import KEDA, PLAIN, Fault, Planted, cut, put
from tests.deploy.policies import POLICIES
from tests.deploy.schemas import problems

MISSPELT = {
    "a field of a container": put(lambda p: p.server, imagePulPolicy="Always"),
    "a field of a probe": put(lambda p: p.server["livenessProbe"], failureTreshold=3),
    "a field of a Job": put(lambda p: p.job, activeDeadlineSecond=5),
    "a field of a rule": put(lambda p: p.job["podFailurePolicy"]["rules"][1]["onExitCodes"], value=[1]),
    "a text for a number": put(lambda p: p.envoy["ports"][0], containerPort="8500"),
    "a number for a text": lambda p: p.server["args"].append(8501),
    "a field that is missing": cut(lambda p: p.spec("Deployment", "jaxport-serve"), "selector"),
    "a kind": put(lambda p: p.of("Service", "jaxport"), kind="Servce"),
    "a version of a kind": put(lambda p: p.of("HorizontalPodAutoscaler", "jaxport-serve"), apiVersion="autoscaling/v3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.policy.__name__}: {fault.words}")
def test_a_planted_fault_is_found(fault: Fault) -> None:
    planted = Planted(fault.output)
    before = list(fault.policy(planted.objects))
    fault.plant(planted)
    said = [each for each in fault.policy(planted.objects) if each not in before]
    assert any(fault.words in each for each in said), said


def test_every_policy_has_found_a_fault() -> None:
    assert {fault.policy for fault in FAULTS} == set(POLICIES)


@pytest.mark.parametrize("what", MISSPELT)
def test_what_is_misspelt_is_found_by_the_schemas(what: str) -> None:
    planted = Planted(PLAIN)
    MISSPELT[what](planted)
    for version in ("1.31", "1.36"):
        assert [said for each in planted.objects for said in problems(each, version)] != []


def test_a_field_of_an_optional_kind_that_is_not_known_is_found() -> None:
    planted = Planted(KEDA)
    planted.spec("ScaledObject", "jaxport-serve")["minReplicas"] = 1
    said = list(problems(planted.of("ScaledObject", "jaxport-serve"), "1.34"))
    assert said == ["ScaledObject jaxport-serve: spec.minReplicas: not a field that is known here"]
