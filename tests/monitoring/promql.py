"""What an expression of PromQL asks for: its series with their matchers, and the labels that it groups by.

No more than that: whether it is PromQL at all is promtool's to say (tests/monitoring/prometheus).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
WORDS = {"and", "or", "unless", "offset", "bool"}
TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
      |(?P<range>\[[^\]]*\])
      |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      |(?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+|[a-z]+)*)
      |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
      |(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){},@])""",
    re.VERBOSE,
)


class NotUnderstood(Exception):
    """The text is no PromQL, or more of it than this reads."""


@dataclass(frozen=True)
class Selector:
    """name{label op "value"}: label -> [(op, value)]. taken_away: it stands on the right of `unless`, so may be missing."""

    name: str
    matchers: Mapping[str, list[tuple[str, str]]]
    taken_away: bool = False


@dataclass(frozen=True)
class Asked:
    """grouped: labels of by, without, on, ignoring; by: those that the result keeps, None where nothing is grouped."""

    selectors: list[Selector] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)
    by: set[str] | None = None


@dataclass
class _Reader:
    tokens: list[tuple[str, str]]
    at: int = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self) -> tuple[str, str]:
        if self.at == len(self.tokens):
            raise NotUnderstood("it ends too soon")
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, wanted: str) -> None:
        found = self.take()[1]
        if found != wanted:
            raise NotUnderstood(f"found {found!r}, needs {wanted!r}")


def asked(expression: str) -> Asked:
    """Reads an expression. Raises NotUnderstood."""
    reader = _Reader(list(_tokens(expression)))
    selectors: list[Selector] = []
    grouped: set[str] = set()
    by: set[str] | None = None
    depth, unless = 0, None  # unless: the depth of the one whose right side this is
    while reader.at < len(reader.tokens):
        kind, text = reader.take()
        if text == "{":
            raise NotUnderstood("a selector without a name")
        depth += (text == "(") - (text == ")")
        if unless is not None and (depth < unless or (depth == unless and text in ("and", "or"))):
            unless = None
        if text == "unless" and unless is None:
            unless = depth
        if kind != "name" or text in WORDS:
            continue
        if text in GROUPING:
            labels = _labels(reader)
            grouped |= labels
            if text == "by":
                by = labels if by is None else by | labels
        elif reader.peek() not in ("(", *GROUPING):
            selectors.append(Selector(text, _matchers(reader), unless is not None))
    if not selectors:
        raise NotUnderstood(f"no series in {expression!r}")
    return Asked(selectors, grouped, by)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise NotUnderstood(f"{text[at : at + 20]!r} in {text!r}")
        at = match.end()
        if match.lastgroup != "skip":
            assert match.lastgroup is not None
            yield match.lastgroup, match[0]


def _labels(reader: _Reader) -> set[str]:
    reader.expect("(")
    found = set()
    while reader.peek() != ")":
        kind, text = reader.take()
        if kind == "name":
            found.add(text)
        elif text != ",":
            raise NotUnderstood(f"{text!r} among labels")
    reader.take()
    return found


def _matchers(reader: _Reader) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    if reader.peek() != "{":
        return found
    reader.take()
    while reader.peek() != "}":
        (kind, label), (_, op), (_, value) = reader.take(), reader.take(), reader.take()
        if kind != "name" or op not in ("=", "!=", "=~", "!~") or value[:1] not in "\"'":
            raise NotUnderstood(f"{label} {op} {value} is no matcher")
        found.setdefault(label, []).append((op, value[1:-1]))
        if reader.peek() == ",":
            reader.take()
    reader.take()
    return found
