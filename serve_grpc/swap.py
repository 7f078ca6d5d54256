"""Puts versions in and out of use: requests move at once, what was accepted is answered, then memory is freed."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from serve_grpc.catalog import DRAINING, SERVING, Catalog, Choice
from serve_grpc.plan import Plan, Routes
from serve_grpc.rules import Rules
from serve_grpc.scheduler import Scheduler
from serve_grpc.serving import NOTHING, Live, Serving
from serve_grpc.version import LoadedVersion

log = logging.getLogger(__name__)


class Swapper:
    """Replaces what a model answers with. One thread at a time.

    on_health: called with a model's name and whether it answers; None: it has gone.
    """

    def __init__(
        self,
        catalog: Catalog,
        serving: Serving,
        scheduler: Scheduler,
        on_health: Callable[[str, bool | None], None],
    ) -> None:
        self._catalog = catalog
        self._serving = serving
        self._scheduler = scheduler
        self._on_health = on_health
        self._health: dict[str, bool] = {}

    def follow(self, model: str, rules: Rules, plan: Plan, versions: Mapping[int, LoadedVersion]) -> None:
        """Sends requests where the plan says, and drains what it does not keep.

        versions: every loaded one, of which some may be new, and in place of one with the same number.
        """
        before = self._serving.live(model).versions
        labels = plan.routes.labels
        pending = {label: v for label, v in rules.labels.items() if labels.get(label) != v}
        policy = "" if rules.policy is None else str(rules.policy)
        self._put(
            model,
            Live.of(plan.routes, versions),
            Choice(policy, plan.routes.default, labels, pending, plan.problems),
        )
        for number, version in versions.items():
            old = before.get(number, version)
            if number not in plan.routes.loaded:
                self._drain(version)
            elif old is not version:
                self._drain(old, version)

    def unload(self, model: str, numbers: Iterable[int]) -> None:
        """Some of a model's versions answer no more, and their memory is free when this returns."""
        before = self._serving.live(model)
        leaving = set(numbers)
        stays = {number: v for number, v in before.versions.items() if number not in leaving}
        self.serve(model, before.routes, stays)
        for number in leaving:
            self._drain(before.versions[number])

    def serve(self, model: str, routes: Routes, versions: Mapping[int, LoadedVersion]) -> None:
        """Sends requests where the routes say, as far as these versions go."""
        default = routes.default if routes.default in versions else None
        labels = {label: version for label, version in routes.labels.items() if version in versions}
        pending = {label: version for label, version in routes.labels.items() if version not in versions}
        choice = replace(self._catalog.choice(model), default=default, labels=labels, pending=pending)
        self._put(model, Live.of(Routes(frozenset(versions), default, labels), versions), choice)

    def remove(self, model: str) -> None:
        """The model does not answer any more: drains all of its versions."""
        before = self._serving.live(model)
        self._serving.put(model, NOTHING)
        self._catalog.choose(model, None)
        # Requests are refused from here on, however long the accepted ones take.
        self.tell_health(model, None)
        for version in before.versions.values():
            self._drain(version)

    def tell_health(self, model: str, serving: bool | None) -> None:
        """Passes a change on."""
        if serving is None:
            self._health.pop(model, None)
        elif self._health.get(model) == serving:
            return
        else:
            self._health[model] = serving
        self._on_health(model, serving)

    def _put(self, model: str, after: Live, choice: Choice) -> None:
        """Nobody is sent to a version before it is SERVING in the catalog, or from it after it is closed."""
        before = self._serving.live(model)
        for number, version in after.versions.items():
            if before.versions.get(number) is not version:
                self._catalog.put(model, replace(version.info, state=SERVING))
        if after != before:
            self._serving.put(model, after)
            _say_moves(model, before, after)
        self._catalog.choose(model, choice)
        if after.default is not None or before.default is not None:
            self.tell_health(model, after.default is not None)

    def _drain(self, old: LoadedVersion, successor: LoadedVersion | None = None) -> None:
        """Answers what the old version accepted, and drops its weights.

        successor: what has its number now; the catalog is about that one.
        """
        if successor is None:
            self._catalog.put(old.model, replace(old.info, state=DRAINING))
        for batcher in old.batchers.values():
            self._scheduler.close(batcher)
        for program in old.programs.values():
            program.weights = {}
        old.metrics.forget(successor and successor.metrics)
        if successor is None:
            self._catalog.remove(old.model, old.info.version)
        log.info("unloaded model=%s version=%d", old.model, old.info.version)


def _say_moves(model: str, before: Live, after: Live) -> None:
    old, new = before.routes, after.routes
    for label in sorted({*old.labels, *new.labels}):
        if old.labels.get(label) != new.labels.get(label):
            log.info(
                "label model=%s label=%s version=%s before=%s",
                model, label, new.labels.get(label), old.labels.get(label),
            )  # fmt: skip
    if old.default != new.default:
        log.info("default model=%s version=%s before=%s", model, new.default, old.default)
