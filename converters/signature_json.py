"""A signature in manifest.json, whose word a server takes for what it compiles, pads and cuts: so all of it is checked."""

import math
import re
from typing import Any

from converters import fields
from converters.dims import constraint_symbols, symbols
from converters.manifest import MOST_BATCHES, MOST_LANES, ROWS, SequenceSpec, Signature, TensorInfo

# Those of numpy's arrays.
MOST_DIMENSIONS = 64
# Choices of sizes that are looked through for those that the constraints allow.
MOST_CHOICES = 1 << 16
INTEGER = re.compile(r"(u?)int(\d{1,2})")
NEEDED = ("name", "inputs", "outputs", "batch_symbol", "constraints", "pad", "program_sha256")
# Left out where they say nothing.
OF_A_SIGNATURE = ("sequence", "rows", "sizes", "bounds", "loss", "vjp_order", "batches")


def parse_signature(name: str, value: Any) -> Signature:
    """What the manifest says of the signature `name`. ValueError."""
    where = fields.at("signatures", name)
    found = fields.record(value, where, NEEDED, OF_A_SIGNATURE)
    fields.identifier(name, "a name in signatures")
    if found["name"] != name:
        raise fields.wrong(found["name"], f"{where}.name", name)
    batch = fields.identifier(found["batch_symbol"], f"{where}.batch_symbol")
    inputs, outputs = (_tensors(found[key], f"{where}.{key}") for key in ("inputs", "outputs"))
    found |= {"inputs": inputs, "outputs": outputs}
    found["pad"] = _pad(found["pad"], f"{where}.pad", inputs)
    fields.digest(found["program_sha256"], f"{where}.program_sha256")
    if found.get("rows", "") not in ROWS:
        raise ValueError(
            f"{where}.rows: the rows {fields.shown(found['rows'])}; needed: bitwise or tolerance"
        )
    constraints = fields.items(found["constraints"], f"{where}.constraints")
    found["constraints"] = tuple(_constraint(each, f"{where}.constraints") for each in constraints)
    loss = fields.flag(found.get("loss", False), f"{where}.loss")
    order = fields.whole(found.get("vjp_order", 0), f"{where}.vjp_order")
    if (declared := found.get("sequence")) is not None:
        found["sequence"] = _sequence(declared, f"{where}.sequence", batch, (inputs, outputs))
    sizes = fields.mapping(found.get("sizes", {}), f"{where}.sizes")
    found["sizes"] = {key: _further(each, fields.at(f"{where}.sizes", key)) for key, each in sizes.items()}
    bounds = fields.mapping(found.get("bounds", {}), f"{where}.bounds")
    found["bounds"] = {key: _bounds(each, fields.at(f"{where}.bounds", key)) for key, each in bounds.items()}
    found["batches"] = _batches(found.get("batches", []), f"{where}.batches")
    signature = Signature(**found)
    _check_dimensions(signature, where)
    if signature.batches and (signature.sequence is not None or signature.free or loss or order):
        raise ValueError(f"{where}.batches beside a sequence, further symbols, a loss or gradients")
    return signature


def _tensors(value: Any, where: str) -> tuple[TensorInfo, ...]:
    tensors: list[TensorInfo] = []
    for index, each in enumerate(fields.items(value, where, empty=False)):
        here = f"{where}[{index}]"
        found = fields.record(each, here, ("name", "dtype", "shape"))
        name = fields.text(found["name"], f"{here}.name")
        if any(name == before.name for before in tensors):
            raise fields.wrong(name, f"{here}.name", "a name that none before it has")
        dtype, shape = (
            fields.text(found["dtype"], f"{here}.dtype"),
            parse_dimensions(found["shape"], f"{here}.shape"),
        )
        tensors.append(TensorInfo(name, dtype, tuple(_dimension(size, f"{here}.shape") for size in shape)))
    return tuple(tensors)


def parse_dimensions(value: Any, where: str) -> list[Any]:
    """The sizes of a shape, each still to be checked, before anything multiplies them. ValueError."""
    sizes = fields.items(value, where)
    if len(sizes) > MOST_DIMENSIONS:
        raise ValueError(f"{where} has {len(sizes)} dimensions, more than {MOST_DIMENSIONS}")
    return sizes


def _dimension(value: Any, where: str) -> int | str:
    """A number, or what is made of symbols."""
    if not isinstance(value, str):
        return fields.whole(value, where)
    try:
        made_of = symbols(value)
    except ValueError:
        made_of = ()
    if not made_of:
        raise fields.wrong(value, where, "a number, or what is made of symbols")
    return value


def _constraint(value: Any, where: str) -> str:
    try:
        constraint_symbols(fields.text(value, where))
    except ValueError:
        raise fields.wrong(value, where, "a constraint, as k >= 2") from None
    return value


def _pad(value: Any, where: str, inputs: tuple[TensorInfo, ...]) -> dict[str, float]:
    """Values that their inputs hold."""
    pads, dtypes = fields.mapping(value, where), {tensor.name: tensor.dtype for tensor in inputs}
    for name, pad in pads.items():
        here = fields.at(where, name)
        if name not in dtypes:
            raise ValueError(f"{here} is of no input")
        if not math.isfinite(fields.number(pad, here)):
            raise fields.wrong(pad, here, "a finite number")
        least, most = _range(dtypes[name])
        if not least <= pad <= most or (most < math.inf and pad != int(pad)):
            raise fields.wrong(pad, here, f"a number that {dtypes[name][: fields.SHOWN]} holds")
    return pads


def _range(dtype: str) -> tuple[float, float]:
    """Of whole numbers; of other dtypes anything."""
    if dtype == "bool":
        return 0, 1
    if not (found := INTEGER.fullmatch(dtype)):
        return -math.inf, math.inf
    bits = int(found[2])
    return (0, 2**bits - 1) if found[1] else (-(2 ** (bits - 1)) if bits else 0, 2 ** max(bits - 1, 0) - 1)


def _further(value: Any, where: str) -> tuple[int, ...]:
    """What a server compiles of one symbol."""
    sizes = fields.items(value, where, empty=False)
    if len(sizes) > MOST_LANES:
        raise ValueError(f"{where} has {len(sizes)} sizes, more than {MOST_LANES}")
    return tuple(fields.whole(size, where, 1) for size in sizes)


def _bounds(value: Any, where: str) -> tuple[int | None, int | None]:
    found = fields.items(value, where)
    if len(found) != 2 or any(not isinstance(each, int | None) or isinstance(each, bool) for each in found):
        raise fields.wrong(value, where, "the least and the most, whole numbers or null")
    least, most = found
    return least, most


def _batches(value: Any, where: str) -> tuple[int, ...]:
    batches = [fields.whole(each, where, 1) for each in fields.items(value, where)]
    if batches != sorted(set(batches)) or len(batches) > MOST_BATCHES:
        raise fields.wrong(value, where, f"at most {MOST_BATCHES} numbers, ascending")
    return tuple(batches)


def _check_dimensions(signature: Signature, where: str) -> None:
    """Every size that a server will compute is one, and there are no more of them than it would compile."""
    for tensor in (*signature.inputs, *signature.outputs):
        first = (signature.batch_symbol,) if not signature.loss or tensor in signature.inputs else ()
        further = {name for size in tensor.shape[1:] for name in symbols(size)}
        if tensor.shape[:1] != first or signature.batch_symbol in further:
            raise fields.wrong(
                list(tensor.shape),
                f"the shape of {tensor.name[:40]!a} in {where}",
                "the batch as its first dimension, of a loss none",
            )
    known = {name for tensor in signature.inputs for size in tensor.shape for name in symbols(size)}
    for tensor in signature.outputs:
        if any(symbols(size) - known for size in tensor.shape):
            raise fields.wrong(
                list(tensor.shape),
                f"the shape of {tensor.name[:40]!a} in {where}",
                "symbols that an input has",
            )
    if signature.sizes and signature.sizes.keys() != signature.free:
        raise ValueError(
            f"{where}.sizes is of {fields.shown(sorted(signature.sizes))}; needed: the further symbols"
        )
    if math.prod(map(len, signature.sizes.values())) > MOST_CHOICES:
        raise ValueError(f"{where}.sizes has more than {MOST_CHOICES} combinations")
    lanes = len(signature.sequence.lengths) if signature.sequence else 1
    if len(signature.combinations) * lanes > MOST_LANES or (signature.sizes and not signature.combinations):
        raise ValueError(f"{where}.sizes has {len(signature.combinations)} combinations of sizes")
    for fixed in map(signature.at_sizes, signature.combinations if signature.sizes else ()):
        for tensor in (*fixed.inputs, *fixed.outputs):
            for size in tensor.shape:
                _dimension(size, f"{where}: {tensor.name[:40]!a}")


def _sequence(
    value: Any, where: str, batch: str, tensors: tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]
) -> SequenceSpec:
    """A sequence that the shapes bear out: a server takes its word for what it pads and cuts."""
    found = fields.record(value, where, ("symbol", "most"))
    symbol = fields.identifier(found["symbol"], f"{where}.symbol")
    sequence = SequenceSpec(symbol, fields.whole(found["most"], f"{where}.most", 1))
    if symbol == batch:
        raise fields.wrong(symbol, f"{where}.symbol", "another than the batch's")
    inputs, outputs = tensors
    if not any(symbol in t.shape for t in inputs):
        raise ValueError(f"{where}: no input has the sequence {symbol[:40]!a}")
    for t in (*inputs, *outputs):
        after = t.shape[2:] if t.shape[1:2] == (symbol,) else t.shape[1:]
        if t.shape[:1] != (batch,) or any({symbol, batch} & symbols(size) for size in after):
            raise ValueError(f"{where}: the shape of {t.name[:40]!a} beside a sequence")
    if any(symbol in t.shape and 0 in t.shape for t in inputs):
        raise ValueError(f"{where}: an input with a sequence and no elements")
    return sequence
