"""The documents of YAML or JSON text, held to what JSON can say: that is what an API is sent.

YAML knows dates, sets, keys that are lists, and aliases by which a few lines become gigabytes. None of it gets past here.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from jaxport.cluster.errors import UsageError

# Kubernetes takes objects of 1.5 MiB at most; this is several of them.
MOST_BYTES = 16 << 20
# Of one document, with every alias written out.
MOST_NODES = 100_000
# Characters of a text that count as one value more.
LONG = 1000
DEEPEST = 100
_MAP, _SEQ, _STR, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "merge"))
_SCALARS = {_STR, *(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))}

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def decoded(source: str, data: bytes) -> str:
    """Raises UsageError: too long, or no UTF-8."""
    if len(data) > MOST_BYTES:
        raise UsageError(f"{source}: more than {MOST_BYTES >> 20} MiB; needed: manifests")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: no UTF-8 at byte {error.start}; needed: YAML or JSON in UTF-8") from None


def documents(source: str, text: str) -> Iterator[tuple[str, Any]]:
    """Where each document is, for people, and what it says: dicts with str keys, lists, str, int, float, bool and None.

    No two places share a part, so that changing one changes no other.

    Raises:
        UsageError: no YAML, or something that JSON has not, with its line.
    """
    try:
        _require_shallow(source, text)
        loader = _Loader(text)
        try:
            number = 0
            while loader.check_node():
                node, number = loader.get_node(), number + 1
                where = f"{source}, document {number}"
                _Check(where, loader.construct_object).run(node)
                yield where, json.loads(json.dumps(loader.construct_document(node)))
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: no YAML: {' '.join(str(error).split())}") from error


def _require_shallow(source: str, text: str) -> None:
    """Before anything is built, which takes a call for each level."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                line = event.start_mark.line + 1
                raise UsageError(f"{source}: line {line}: more than {DEEPEST} levels; needed: manifests")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Check:
    """Of one document."""

    def __init__(self, where: str, construct: Callable[[yaml.Node], Any]) -> None:
        self._where, self._construct = where, construct
        self._sizes: dict[int, int] = {}

    def run(self, node: yaml.Node) -> None:
        self._size(node)

    def _refuse(self, node: yaml.Node, said: str) -> UsageError:
        return UsageError(f"{self._where}: line {node.start_mark.line + 1}: {' '.join(said.split())}")

    def _size(self, node: yaml.Node) -> int:
        """Nodes with every alias written out."""
        known = self._sizes.get(id(node))
        if known == 0:
            raise self._refuse(node, "an alias of what it is part of has no end; write it out")
        if known is not None:
            return known
        self._sizes[id(node)] = 0
        size = 1 + sum(map(self._size, self._parts(node)))
        if isinstance(node, yaml.ScalarNode):
            size += len(node.value) // LONG
        if size > MOST_NODES:
            raise self._refuse(
                node, f"more than {MOST_NODES:,} values with its aliases written out; make files of it"
            )
        self._sizes[id(node)] = size
        return size

    def _parts(self, node: yaml.Node) -> list[yaml.Node]:
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            self._keys(node)
            return [value for _, value in node.value]
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return node.value
        if not isinstance(node, yaml.ScalarNode):
            raise self._refuse(node, f"{_kind(node)} is nothing that JSON has; write a list or a mapping")
        self._scalar(node)
        return []

    def _keys(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._refuse(key, f"{_kind(key)} as a key; needed: text")
            if key.tag not in (_STR, _MERGE):
                raise self._refuse(key, f"the key {key.value} is {_kind(key)}; needed: text; quote it")
            # YAML lets a key be given twice, and the second one wins without a word.
            if key.value in seen:
                raise self._refuse(key, f"{key.value} is given twice; leave one of them out")
            seen.add(key.value)

    def _scalar(self, node: yaml.ScalarNode) -> None:
        value = node.value if len(node.value) <= 60 else f"{node.value[:60]}..."
        if node.tag not in _SCALARS:
            raise self._refuse(node, f"{value} is {_kind(node)}, which JSON has not; quote it")
        try:
            json.dumps(self._construct(node), allow_nan=False)
        except (ValueError, KeyError, AttributeError, TypeError):
            raise self._refuse(node, f"{value} is no {_name(node)} that JSON has; quote it") from None


def _name(node: yaml.Node) -> str:
    return node.tag.rpartition(":")[2]


def _kind(node: yaml.Node) -> str:
    names = {"seq": "a list", "map": "a mapping", "timestamp": "a date", "int": "an int"}
    return names.get(_name(node), f"a {_name(node)}")
