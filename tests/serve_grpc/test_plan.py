"""Which versions are loaded, kept and asked, for every policy and every state of the folder."""

import pytest

from converters.labels import ByLabel, Latest, Pinned, Policy
from serve_grpc.plan import Plan, Routes, make_plan
from serve_grpc.rules import Rules


def plan(
    policy: Policy | None,
    present: list[int],
    loaded: tuple[int, ...] = (),
    default: int | None = None,
    labels: dict[str, int] | None = None,
    stand: dict[str, int] | None = None,
    blocked: tuple[int, ...] = (),
) -> Plan:
    """labels: as the files say; stand: as requests see them now."""
    now = Routes(frozenset(loaded), default, stand or {})
    return make_plan(Rules(policy, labels or {}), present, set(blocked), now)


def kept(made: Plan) -> set[int]:
    return set(made.routes.loaded)


def test_latest_loads_the_highest_and_keeps_the_one_before_until_then() -> None:
    made = plan(Latest(1), [1, 2], (1,), 1)
    assert (made.load, made.routes.default, kept(made)) == ((2,), 1, {1})
    made = plan(Latest(1), [1, 2], (1, 2), 1)
    assert (made.load, made.routes.default, kept(made)) == ((), 2, {2})


def test_latest_several_loads_the_highest_first_and_drops_the_lowest_last() -> None:
    assert plan(Latest(2), [1, 2, 3]).load == (3, 2)
    made = plan(Latest(2), [1, 2, 3], (1, 2), 2)
    assert (made.load, made.routes.default, kept(made)) == ((3,), 2, {1, 2})
    made = plan(Latest(2), [1, 2, 3], (1, 2, 3), 2)
    assert (made.load, made.routes.default, kept(made)) == ((), 3, {2, 3})


def test_latest_passes_over_what_failed_and_what_has_gone() -> None:
    made = plan(Latest(1), [1, 2, 3], (2,), 2, blocked=(3,))
    assert (made.load, made.routes.default, kept(made)) == ((), 2, {2})
    made = plan(Latest(1), [1], (2,), 2)
    assert (made.load, made.routes.default, kept(made)) == ((1,), 2, {2})
    made = plan(Latest(1), [1], (1, 2), 2)
    assert (made.routes.default, kept(made)) == (1, {1})
    made = plan(Latest(1), [1, 3], (2,), 2, blocked=(1, 3))
    assert (made.load, made.routes.default, kept(made)) == ((), 2, {2}), "nothing replaces 2"


def test_pinned_takes_these_and_leaves_what_serves_when_none_of_them_loads() -> None:
    made = plan(Pinned((1, 3)), [1, 2, 3, 4], (4,), 4)
    assert (made.load, made.routes.default, kept(made)) == ((3, 1), 4, {4})
    made = plan(Pinned((1, 3)), [1, 2, 3, 4], (1, 3, 4), 4)
    assert (made.routes.default, kept(made)) == (3, {1, 3})
    made = plan(Pinned((7,)), [1, 2], (2,), 2)
    assert (made.load, made.routes.default, kept(made)) == ((), 2, {2})
    assert "version 7, which is not in the folder" in made.problems[0]
    made = plan(Pinned((3,)), [2, 3], (2,), 2, blocked=(3,))
    assert (made.routes.default, kept(made)) == (2, {2})
    assert "version 3, which failed to load" in made.problems[0]


def test_a_labelled_version_is_loaded_beside_what_the_policy_asks_for_and_is_not_the_default() -> None:
    made = plan(Pinned((3,)), [1, 3, 5], (3,), 3, labels={"canary": 5})
    assert (made.load, made.routes.labels) == ((5,), {})
    made = plan(Pinned((3,)), [1, 3, 5], (3, 5), 3, labels={"canary": 5})
    assert (made.load, made.routes.default, made.routes.labels) == ((), 3, {"canary": 5})
    assert kept(made) == {3, 5}


def test_a_label_stays_where_it_was_until_its_new_version_is_loaded() -> None:
    made = plan(Latest(1), [1, 2, 3], (3, 1), 3, labels={"stable": 2}, stand={"stable": 1})
    assert (made.load, made.routes.labels, kept(made)) == ((2,), {"stable": 1}, {1, 3})
    made = plan(Latest(1), [1, 2, 3], (3, 2, 1), 3, labels={"stable": 2}, stand={"stable": 1})
    assert (made.load, made.routes.labels, kept(made)) == ((), {"stable": 2}, {2, 3})
    made = plan(Latest(1), [1, 2], (2, 1), 2, labels={"stable": 9}, stand={"stable": 1})
    assert (made.routes.labels, kept(made)) == ({"stable": 1}, {1, 2})
    assert "label 'stable' points to version 9, which is not in the folder" in made.problems[0]
    made = plan(Latest(1), [1, 2], (2, 1), 2, stand={"stable": 1})
    assert (made.routes.labels, kept(made)) == ({}, {2}), "the label was removed"


def test_by_label_serves_what_the_label_points_to_and_nothing_unproven() -> None:
    made = plan(ByLabel("stable"), [1, 2, 3], labels={"stable": 2})
    assert (made.load, made.routes.default) == ((2,), None)
    made = plan(ByLabel("stable"), [1, 2, 3], (1, 2), 1, labels={"stable": 2}, stand={"stable": 1})
    assert (made.routes.default, kept(made)) == (2, {2})
    made = plan(ByLabel("stable"), [1, 2, 3])
    assert (made.load, made.routes.default) == ((), None)
    assert "--label stable" in made.problems[0]
    made = plan(ByLabel("stable"), [1, 2], (2,), 2)
    assert (made.routes.default, kept(made)) == (2, {2}), "a missing label takes nothing down"


def test_a_labelled_version_whose_folder_has_gone_serves_on() -> None:
    made = plan(ByLabel("stable"), [1, 3], (2,), 2, labels={"stable": 2}, stand={"stable": 2})
    assert (made.load, made.routes.default, kept(made)) == ((), 2, {2})
    assert "whose folder has gone" in made.problems[0]


def test_without_any_reading_of_the_policy_nothing_new_is_served() -> None:
    assert plan(None, [1, 2]).load == ()
    made = plan(None, [1, 2], (1,), 1)
    assert (made.load, made.routes.default, kept(made)) == ((), 1, {1})


@pytest.mark.parametrize("policy", [Latest(1), Latest(2), Pinned((2, 4)), ByLabel("a"), None])
def test_following_plans_ends_and_no_step_takes_down_a_default(policy: Policy | None) -> None:
    """From any state, with versions that fail: loads end, and a version that answers is replaced, never just lost."""
    present, bad = [1, 2, 3, 4, 5], {4, 5}
    for first in (None, 1, 2, 3):
        now = Routes() if first is None else Routes(frozenset({first}), first, {})
        blocked: set[int] = set()
        for _ in range(20):
            made = make_plan(Rules(policy, {"a": 3, "b": 4}), present, blocked, now)
            assert now.default is None or made.routes.default is not None
            assert made.routes.default is None or made.routes.default in made.routes.loaded
            assert set(made.routes.labels.values()) <= made.routes.loaded
            now = made.routes
            if not made.load:
                break
            if made.load[0] in bad:
                blocked.add(made.load[0])
            else:
                now = now.having({*now.loaded, made.load[0]})
        else:
            pytest.fail("the plans do not come to an end")
        assert now.labels == {"a": 3}
