"""A function as nothing but its primitives: what it calls is written out, for a converter that cannot follow calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as core

# Calls that mean their body. Loops and branches stay as they are.
CALLS = {
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "checkpoint",
    "remat2",
}  # fmt: skip


def by_primitives(function: Callable[..., Sequence[Any]], *specs: Any) -> Callable[..., tuple[Any, ...]]:
    """`function` of arrays of the shapes and dtypes of `specs`, traced once; the result binds primitives only."""
    traced = jax.make_jaxpr(function)(*specs)
    return lambda *arguments: tuple(_run(traced, arguments))


def _run(jaxpr: Any, arguments: Sequence[Any]) -> list[Any]:
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    values: dict[Any, Any] = dict(zip(inner.constvars, getattr(jaxpr, "consts", ()), strict=True))
    values.update(zip(inner.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in inner.eqns:
        results = _apply(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in inner.outvars]


def _apply(equation: Any, operands: list[Any]) -> Sequence[Any]:
    primitive = equation.primitive
    if primitive.name in CALLS:
        return _run(_body(equation.params), operands)
    if primitive.name == "select_n" and len(operands) == 3 and operands[1].dtype == bool:
        # onnxruntime has no Where for booleans.
        which, no, yes = operands
        chosen = jax.lax.bitwise_and(which, yes)
        return [jax.lax.bitwise_or(chosen, jax.lax.bitwise_and(jax.lax.bitwise_not(which), no))]
    bound = primitive.get_bind_params(equation.params)
    functions, params = ((), bound) if isinstance(bound, Mapping) else bound
    results = primitive.bind(*functions, *operands, **params)
    return results if primitive.multiple_results else [results]


def _body(params: Mapping[str, Any]) -> Any:
    return next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
