"""Sizes of dimensions as shapes have them: numbers, symbols and what JAX writes of symbols, as "2*k" or "floordiv(t, 2)".

Nothing here needs JAX: readers of a manifest compute a size, they prove nothing.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

LONGEST = 200  # characters of an expression; a manifest is not taken at its word
LARGEST_EXPONENT = 8
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: lambda base, exponent: _power(base, exponent),
}
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
}


def symbols(dim: int | str) -> frozenset[str]:
    """The symbols in a dimension. ValueError for what is no dimension."""
    return frozenset() if isinstance(dim, int) else _symbols(dim)


@lru_cache(1024)
def _symbols(dim: str) -> frozenset[str]:
    called = {id(node.func) for node in ast.walk(_parsed(dim)) if isinstance(node, ast.Call)}
    names = (node for node in ast.walk(_parsed(dim)) if isinstance(node, ast.Name) and id(node) not in called)
    return frozenset(node.id for node in names)


def size(dim: int | str, sizes: Mapping[str, int]) -> int:
    """What the dimension is where its symbols are these numbers. KeyError for a symbol that is not among them,
    ValueError for what is no dimension.
    """
    return dim if isinstance(dim, int) else _value(_parsed(dim), sizes)


def constraint_symbols(constraint: str) -> frozenset[str]:
    """The symbols of a constraint, as "t <= 256". ValueError for what is none."""
    left, _, right = _sides(constraint)
    return symbols(left) | symbols(right)


def holds(constraint: str, sizes: Mapping[str, int]) -> bool:
    """Whether the numbers meet the constraint. Errors as of `size`."""
    left, compare, right = _sides(constraint)
    return compare(size(left, sizes), size(right, sizes))


def all_hold(constraints: Iterable[str], sizes: Mapping[str, int]) -> bool:
    """Whether the numbers meet every constraint whose symbols are all among them."""
    return all(holds(each, sizes) for each in constraints if constraint_symbols(each) <= sizes.keys())


def _sides(constraint: str) -> tuple[str, Callable[[int, int], bool], str]:
    for sign, compare in _COMPARISONS.items():
        left, found, right = constraint.partition(sign)
        if found:
            return left.strip(), compare, right.strip()
    raise ValueError(f"the constraint {constraint[:40]!r} has none of {', '.join(_COMPARISONS)}")


@lru_cache(1024)
def _parsed(dim: str) -> ast.expr:
    if len(dim) > LONGEST:
        raise ValueError(f"the dimension {dim[:40]!r}… has {len(dim)} characters")
    try:
        tree = ast.parse(dim.strip().replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"the dimension {dim[:40]!r}") from None
    _check(tree, dim)
    return tree


def _check(node: ast.expr, dim: str) -> None:
    match node:
        case ast.Name() | ast.Constant(value=int()):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            inner = [left, right]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = [operand]
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
            inner = [left, right]
        case _:
            raise ValueError(f"the dimension {dim[:40]!r}")
    for each in inner:
        _check(each, dim)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int() as number):
            return int(number)
        case ast.UnaryOp(operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right):
            return _checked(_OPERATORS[type(op)](_value(left, sizes), _value(right, sizes)))
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            try:
                return _FUNCTIONS[name](_value(left, sizes), _value(right, sizes))
            except ZeroDivisionError:
                raise ValueError(f"{name} by 0 in a dimension") from None
    raise ValueError("a dimension")


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent <= LARGEST_EXPONENT:
        raise ValueError(f"the exponent {exponent} in a dimension")
    return base**exponent


def _checked(number: int) -> int:
    if math.log2(abs(number) + 1) > 63:
        raise ValueError("a dimension past the range of sizes")
    return number
