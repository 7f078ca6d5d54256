"""What the rules have found in one export, and what its caller allowed beforehand."""

from collections.abc import Mapping, Sequence

from converters.errors import BadSpec
from converters.lint.rules import RULES, refusal


class Findings:
    """Refuses what a rule finds, unless that rule was allowed: then it is kept in `allowed`, with the reason."""

    def __init__(self, allow: Mapping[str, str] | None = None) -> None:
        """allow: reason by code. Raises BadSpec, as check_allowed.

        along_batch: the function traced last does something along its batch, which the proof of rows looks into.
        """
        self.along_batch = False
        self._allow = dict(allow or {})
        self.allowed: dict[str, str] = {}
        check_allowed(self._allow)

    def add(self, code: str, what: str, cure: str = "") -> None:
        """Raises ExportRefused for what the rule `code` has found, unless it is allowed."""
        if code not in self._allow:
            raise refusal(code, what, cure)
        self.allowed[code] = self._allow[code]

    @property
    def unneeded(self) -> list[str]:
        """What was allowed and nothing needed."""
        return [code for code in self._allow if code not in self.allowed]


def parse_allowed(flags: Sequence[str]) -> dict[str, str]:
    """Reasons by code of flags as `JP103=the table is a fixed vocabulary`. Raises BadSpec, as check_allowed."""
    allow: dict[str, str] = {}
    for flag in flags:
        code, _, reason = flag.partition("=")
        if code in allow:
            raise BadSpec(f"allow {code}: given twice; once is needed")
        allow[code] = reason
    check_allowed(allow)
    return allow


def check_allowed(allow: Mapping[str, str]) -> None:
    """BadSpec where a code is unknown or may never be allowed, or has no reason."""
    those = ", ".join(code for code, rule in RULES.items() if rule.risk)
    for code, reason in allow.items():
        if code not in RULES:
            raise BadSpec(f"allow {code!r}: no such rule; those that may be allowed are {those}")
        if not RULES[code].risk:
            raise BadSpec(
                f"allow {code}: {RULES[code].name} may never be allowed ({RULES[code].wrong}); those that may be are {those}"
            )
        if not isinstance(reason, str) or not reason.strip() or "\n" in reason:
            raise BadSpec(
                f'allow {code}: {reason!r}; the reason is needed, in one line: {code}="why it is right"'
            )
