"""The rules, by code. docs/lint.md has a section for each, with a model that breaks it and one that does not.

A rule may be allowed where what it finds costs or risks something and the answers are right, as far as the proof has
seen. What would make a server answer wrongly or fail may never be.
"""

from dataclasses import dataclass

from converters.errors import ExportRefused


@dataclass(frozen=True)
class Rule:
    """code, name: for people and programs. wrong, cure: a clause each. risk: of allowing it; empty, it may not be."""

    code: str
    name: str
    wrong: str
    cure: str
    risk: str = ""


_TABLE = (
    Rule(
        "JP101",
        "callback",
        "the function calls back into Python, and a server has no Python source to call",
        "remove it",
    ),
    Rule(
        "JP102",
        "custom-call",
        "the program calls a target that JAX promises for no other release",
        "compute it with operations of JAX that have a promise",
        risk="another jaxlib may lack the target or mean something else by it: serve with the jaxlib that exported",
    ),
    Rule(
        "JP103",
        "captured-constant",
        "the function captures a large array instead of taking it through params",
        "move it to params",
        risk="the array is in the program and not among the weights: new values are a new program to compile",
    ),
    Rule(
        "JP104",
        "size-compared",
        "the function compares a size that each request chooses",
        "compute the same for every size, or mask by values",
    ),
    Rule(
        "JP105",
        "size-not-symbolic",
        "the function needs a size as a number, and each request chooses it",
        "use the array's own shape in operations of JAX (reshape(-1, n), arange, scan) and no Python loop or number",
    ),
    Rule(
        "JP106",
        "size-branch",
        "the program differs from the function at some size, as after `if x.shape[0] == 1`, which a symbol never is",
        "compute the same for every size",
    ),
    Rule(
        "JP107",
        "rows-mixed",
        "the answer of a row changes with the rows beside it, as with a mean over the batch",
        "a server puts the rows of many callers into one batch: compute each from its own inputs and the params",
    ),
    Rule(
        "JP108",
        "row-place",
        "the answer of a row changes with its place in the batch, as with arange over the batch",
        "a server puts a row anywhere in a batch: compute each from its own inputs and the params",
    ),
    Rule(
        "JP109",
        "output-batch",
        "an output does not have the batch as its first dimension, and there alone",
        "give one row of output per row of input, so that rows can be handed back to their callers",
    ),
    Rule(
        "JP110",
        "output-size",
        "an output has a size after the batch that is neither fixed nor the declared sequence, second",
        "fix the size, so that what padding adds can be cut off",
    ),
    Rule(
        "JP111",
        "output-dtype",
        "an output has a dtype that no client can read",
        "give its data, in a dtype of whole bytes",
    ),
    Rule(
        "JP112",
        "padding-seen",
        "the answer of a row changes with what is padded behind its end",
        "mask what stands there, let no position look behind its own, or fix the length and leave sequence= out",
    ),
    Rule(
        "JP113",
        "fixed-noise",
        "the function draws random numbers from a key that no input has a part in: every request gets the same ones",
        "turn dropout off for inference, or make the key of an input, as a seed for each row",
        risk="the numbers never change, as a table of weights would not: right for random projections, not for sampling",
    ),
    Rule(
        "JP114",
        "not-repeatable",
        "the function answers the same inputs differently when it is called or traced again",
        "take random numbers from jax.random with a key from an input, and state, time and numpy's random numbers out",
    ),
    Rule(
        "JP115",
        "platform-dependent",
        "the function uses an operation whose answers differ between devices",
        "use one that is defined alike everywhere: threefry keys for random numbers, top_k for approx_max_k",
        risk="the goldens hold where the export was proven; another kind of device may fail them and be refused",
    ),
    Rule(
        "JP116",
        "narrowed-dtype",
        "the function asks for 64 bits and JAX gives it 32, since x64 is off",
        "set JAX_ENABLE_X64=1 for the export, or ask for 32 bits",
        risk="the program computes in 32 bits, as the function does here",
    ),
    Rule(
        "JP117",
        "platform",
        "the function cannot be lowered for one of the platforms",
        "leave the platform out, or use operations that it has",
    ),
    Rule(
        "JP118",
        "effect",
        "the function changes something outside of its answer, which a program without its process cannot",
        "give what changes as an output and take it as an input",
    ),
    Rule(
        "JP119",
        "donated",
        "the function donates an argument, which no program inside another can, and a server needs its weights again",
        "leave donate_argnums out",
        risk="nothing is donated: the memory of two copies is needed where the function had one",
    ),
    Rule(
        "JP120",
        "untraceable",
        "JAX cannot trace or lower the function",
        "make jax.jit(function) run on the example first",
    ),
    Rule(
        "JP121",
        "no-gradient",
        "JAX cannot differentiate the function backwards as often as vjp_order says",
        "use operations that have a gradient (scan for while_loop, a bounded fori_loop), or export with vjp_order=0",
    ),
    Rule(
        "JP122",
        "gradient-differs",
        "the gradient of the program differs from the function's, as after a custom_vjp that branches on a size",
        "compute the same for every size, or export with vjp_order=0",
    ),
)
RULES = {rule.code: rule for rule in _TABLE}


def refusal(code: str, what: str, cure: str = "") -> ExportRefused:
    """The error for what a rule has found: the code, what was found, and the rule's cure or a nearer one."""
    rule = RULES[code]
    allowing = f"; or, where the risk is yours to take, --allow {code}=REASON" if rule.risk else ""
    return ExportRefused(f"{what}; {cure or rule.cure}{allowing}", code)
