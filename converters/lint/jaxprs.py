"""What can be seen of a function in its jaxpr, before it is lowered."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from converters.lint.findings import Findings

DRAWS = frozenset({"random_bits", "random_gamma", "threefry2x32", "rng_bit_generator"})


def lint_jaxpr(jaxpr: Any, weights: int, findings: Findings) -> None:
    """jaxpr: open, its first `weights` arguments the weights and the others the inputs."""
    equations = list(_equations(jaxpr))
    for equation in equations:
        _lint_call(equation, findings)
    if jaxpr.effects:
        findings.add("JP118", f"the function has the effect {min(map(str, jaxpr.effects))}")
    for equation in equations:
        _lint_device(equation, findings)
    of_input = [at >= weights for at in range(len(jaxpr.invars))]
    fixed = _Fixed()
    fixed.walk(jaxpr, of_input)
    if fixed.draws:
        findings.add(
            "JP113", f"the function draws random numbers ({fixed.draws[0]}) from a key without an input"
        )


def _lint_call(equation: Any, findings: Findings) -> None:
    name = equation.primitive.name
    if "callback" in name or name.startswith("debug_"):
        hint = " (jax.debug.print or its like)" if name.startswith("debug_") else ""
        findings.add("JP101", f"the function uses {name}{hint}: a server has no Python source to call")
    if any(equation.params.get("donated_invars", ())):
        inner = equation.params.get("name", "a jitted function")
        findings.add("JP119", f"{inner!r} donates an argument, which no program inside another can")
    if name == "rng_uniform":
        findings.add("JP114", "rng_uniform answers differently at each call")


def _lint_device(equation: Any, findings: Findings) -> None:
    name = equation.primitive.name
    if name == "approx_top_k":
        findings.add("JP115", "approx_top_k is exact on some devices and approximate on others")
    default = name == "rng_bit_generator" and "default" in str(equation.params.get("algorithm")).lower()
    rbg = name == "random_bits" and "rbg" in str(equation.invars[0].aval.dtype)
    if default or rbg:
        findings.add("JP115", "random numbers by rbg differ between kinds of device")


def works_along(jaxpr: Any, symbol: str) -> bool:
    """Whether anything is computed along a dimension of size `symbol`, or with that size as a number.

    What works on each row by itself has none of it; what counts rows to treat many of them apart has.
    """
    for equation in _equations(jaxpr):
        name, params = equation.primitive.name, equation.params
        if name == "dim_as_value" and symbol in str(params["dim"]):
            return True
        if name == "iota" and symbol in str(params["shape"][params["dimension"]]):
            return True
        axes = params.get("axes", ()) if name.startswith(("reduce_", "arg")) else ()
        if name.startswith("cum"):
            axes = (params["axis"],)
        elif name == "sort":
            axes = (params["dimension"],)
        elif name == "dot_general":
            axes = params["dimension_numbers"][0][0]
        elif name == "scan" and symbol in str(params["length"]):
            return True
        shape = equation.invars[0].aval.shape if axes else ()
        if any(symbol in str(shape[axis]) for axis in axes):
            return True
    return False


class _Fixed:
    """Follows which values have an input's part in them, and keeps the draws of random numbers that have none."""

    def __init__(self) -> None:
        self.draws: list[str] = []

    def walk(self, jaxpr: Any, arguments: Sequence[bool]) -> list[bool]:
        """Which results depend on an input, by which arguments do."""
        depends = {id(var): flag for var, flag in zip(jaxpr.invars, arguments, strict=True)}
        for equation in jaxpr.eqns:
            flags = [depends.get(id(var), False) for var in equation.invars]
            if equation.primitive.name in DRAWS and not any(flags):
                self.draws.append(equation.primitive.name)
            for var, flag in zip(equation.outvars, self._results(equation, flags), strict=True):
                depends[id(var)] = flag
        return [depends.get(id(var), False) for var in jaxpr.outvars]

    def _results(self, equation: Any, flags: list[bool]) -> list[bool]:
        name = equation.primitive.name
        if name == "scan":
            return self._scan(equation, flags)
        inner = list(_inner(equation))
        if name == "cond":
            branches = [self.walk(jaxpr, flags[1:]) for jaxpr in inner]
            return [flags[0] or any(each) for each in zip(*branches, strict=True)]
        if len(inner) == 1 and len(inner[0].invars) == len(flags):
            results = self.walk(inner[0], flags)
            if len(results) == len(equation.outvars):
                return results
        else:
            # A loop, or a call that is not known: its body sees an input wherever one goes in.
            for jaxpr in inner:
                self.walk(jaxpr, [any(flags)] * len(jaxpr.invars))
        return [any(flags)] * len(equation.outvars)

    def _scan(self, equation: Any, flags: list[bool]) -> list[bool]:
        """An input may reach the carry only after some turns.

        What a body takes is constants, carry, slices; what it gives is carry, slices. Slices have a dimension less inside.
        """
        body, now = equation.params["jaxpr"].jaxpr, list(flags)
        slices = sum(a.aval.ndim != b.aval.ndim for a, b in zip(body.invars, equation.invars, strict=True))
        count = sum(a.aval.ndim == b.aval.ndim for a, b in zip(body.outvars, equation.outvars, strict=True))
        first = len(flags) - slices - count
        while True:
            quiet = _Fixed()
            results = quiet.walk(body, now)
            after = [a or b for a, b in zip(now[first : first + count], results[:count], strict=True)]
            if after == now[first : first + count]:
                self.draws += quiet.draws
                return results
            now[first : first + count] = after


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inner(equation):
            yield from _equations(inner)


def _inner(equation: Any) -> Iterator[Any]:
    """The jaxprs that an equation calls."""
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
        if _is_jaxpr(value):
            yield getattr(value, "jaxpr", value)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")
