"""What a model's policy and label files say, with the last good reading where one of them says nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from converters.errors import BadPolicy
from converters.labels import Policy, label_names, read_label, read_policy


@dataclass(frozen=True)
class Rules:
    """policy: None when it could never be read. labels: label -> version. problems: one line per file that is no use."""

    policy: Policy | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class RulesReader:
    """Reads the files of one model after the other; one thread at a time."""

    def __init__(self) -> None:
        self._last: dict[str, Rules] = {}

    def read(self, model_dir: Path) -> Rules:
        """The rules as they are now. A file that cannot be used counts as it did when it last could."""
        before = self._last.get(model_dir.name, Rules())
        problems: list[str] = []
        policy = before.policy
        try:
            policy = read_policy(model_dir)
        except BadPolicy as problem:
            problems.append(str(problem))
        labels = self._labels(model_dir, before.labels, problems)
        rules = self._last[model_dir.name] = Rules(policy, labels, tuple(problems))
        return rules

    def forget(self, model: str) -> None:
        """The model has gone."""
        self._last.pop(model, None)

    @staticmethod
    def _labels(model_dir: Path, before: Mapping[str, int], problems: list[str]) -> Mapping[str, int]:
        try:
            names = label_names(model_dir)
        except BadPolicy as problem:
            problems.append(str(problem))
            return before
        labels = {}
        for name in names:
            try:
                labels[name] = read_label(model_dir, name)
            except FileNotFoundError:  # removed since it was listed
                continue
            except BadPolicy as problem:
                problems.append(str(problem))
                if name in before:
                    labels[name] = before[name]
        return labels
