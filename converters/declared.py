"""A SignatureSpec read: its parts checked one by one and against each other, before anything is traced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converters.dims import all_hold
from converters.errors import BadSpec
from converters.example import Example, parse_example
from converters.gradient_proof import check_order
from converters.manifest import ANY_BATCH, SequenceSpec, TensorInfo
from converters.spec import (
    SignatureSpec,
    free_symbols,
    parse_batches,
    parse_inputs,
    parse_pad,
    parse_sizes,
)


@dataclass(frozen=True)
class Declared:
    """outputs: names. symbol: of the batch. free: the further symbols of the inputs. sizes: what a server compiles of
    them. constraints: of the further symbols. batches: the only ones that there is a program for; none where one takes
    any. pad: by input. order: how often the program can be differentiated.
    """

    outputs: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    symbol: str
    sequence: SequenceSpec | None
    free: tuple[str, ...]
    sizes: Mapping[str, tuple[int, ...]]
    constraints: tuple[str, ...]
    batches: tuple[int, ...]
    example: Example
    pad: Mapping[str, float]
    loss: bool
    order: int

    @property
    def all_constraints(self) -> tuple[str, ...]:
        """Also that of the sequence, as JAX is told."""
        ends = () if self.sequence is None else (f"{self.sequence.symbol} <= {self.sequence.most}",)
        return (*self.constraints, *ends)

    @property
    def programs(self) -> tuple[int, ...]:
        """The batches that a program is made for; ANY_BATCH is one for any."""
        return self.batches or (ANY_BATCH,)

    @property
    def cure(self) -> str:
        """What else helps where the function bears no symbol as its size; empty where nothing does."""
        if self.batches or self.loss or (self.free and self.sequence is None):
            return ""
        if self.sequence is not None:
            return f"where the length cannot be a symbol, fix it: a number for {self.sequence.symbol!r}, and no sequence="
        return "or have a program for each of a few batches, with --fixed-batch 1,2,4,8 or fixed_batches=(1, 2, 4, 8)"


def declare(spec: SignatureSpec) -> Declared:
    """BadSpec where a part of it is none, or two do not go together."""
    outputs, sequence, further = _outputs(spec.outputs), spec.sequence, tuple(spec.constraints)
    order = check_order(spec.vjp_order or 0)
    if spec.loss and sequence is not None:
        raise BadSpec("loss: it has a sequence too; no row is padded for a loss: fix the length")
    symbol, inputs = parse_inputs(spec.inputs, sequence, further, spec.example)
    free = free_symbols(inputs, symbol, sequence)
    other = "loss=" if spec.loss else "vjp_order=" if order else ""
    batches = parse_batches(spec.fixed_batches, free, sequence, other)
    sizes = parse_sizes(spec.sizes, free, further, sequence)
    example, pad = parse_example(inputs, spec.example, sequence), parse_pad(inputs, spec.pad or {})
    if not all_hold(further, example.sizes):
        raise BadSpec(f"example: {example.sizes} is outside of the constraints {list(further)}")
    return Declared(
        outputs, inputs, symbol, sequence, free, sizes, further, batches, example, pad, spec.loss, order
    )


def _outputs(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise BadSpec(f"outputs: {names!r} is one text; names are needed, as ({names!r},)")
    outputs = tuple(names)
    if not outputs or len(set(outputs)) < len(outputs):
        raise BadSpec(f"outputs: {list(outputs)}; at least one name is needed, each once")
    for name in outputs:
        # "/" is between a signature and its output where tolerances are listed.
        if not isinstance(name, str) or not name.isprintable() or not name or "/" in name:
            raise BadSpec(f"outputs: {name!r} is no name; printable text without '/' is needed, as 'logits'")
    return outputs
