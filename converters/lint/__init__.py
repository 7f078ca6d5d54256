"""What an export refuses, by rule: each has a code, what is wrong, the cure, and whether it may be allowed."""

from converters.lint.findings import Findings, check_allowed, parse_allowed
from converters.lint.rules import RULES, Rule, refusal

__all__ = ["RULES", "Findings", "Rule", "check_allowed", "parse_allowed", "refusal"]
