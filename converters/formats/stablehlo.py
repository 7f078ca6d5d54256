"""StableHLO as bytecode of fixed shapes, for PJRT plugins and IREE: stablehlo/<signature>.b<batch>.mlirbc.

The arguments are the weights by name and then the inputs by name, as the manifest's `formats` lists them; nothing is
donated. A sequence has its longest length: shorter rows are padded behind their end, as a server pads them. Further symbols
have the sizes that a server compiles: stablehlo/<signature>.b<batch>.k2.mlirbc for k=2, listed as "<batch>,k=2".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import BadSpec, ExportRefused
from converters.formats import ProvenBundle, ProvenSignature
from converters.formats.answers import Answers, Written, library
from converters.manifest import ANY_BATCH, Signature, TensorInfo

FOLDER = "stablehlo"
ENTRY = "main"
BATCHES = (1, 2, 4, 8, 16, 32)


def write(
    folder: Path, proven: ProvenBundle, batches: Sequence[int] = (), platform: str = ""
) -> dict[str, Any]:
    """Writes one file per signature, batch and sizes of its further symbols.

    batches: BATCHES where none is given, or those of a function that takes fixed ones. platform: whose lowering, the
    bundle's first if not given. BadSpec: a batch that is none, or a symbol without sizes. ExportRefused: it calls what
    only jaxlib has.
    """
    from converters.formats.lowering import argument_names, lower, output_names, portable

    platform = platform or proven.platforms[0]
    if any(isinstance(b, bool) or not isinstance(b, int) or b < 1 for b in batches):
        raise BadSpec(f"stablehlo: batches {list(batches)}; whole numbers from 1 are needed, as 1,4,16")
    version = _version()
    (folder / FOLDER).mkdir()
    signatures: dict[str, Any] = {}
    for name, one in proven.signatures.items():
        fixed = [b for b in one.exported if b != ANY_BATCH]
        sizes = sorted(set(batches) or set(fixed) or set(BATCHES))
        if fixed and not set(sizes) <= set(fixed):
            raise BadSpec(f"stablehlo: batches {sizes}; {name!r} takes {', '.join(map(str, fixed))} only")
        shapes = [(size, chosen) for chosen in _sizes(one.signature) for size in sizes]
        programs = {
            key(*shape): lower(_at_sizes(one, shape[1]), proven.weights, (platform,), shape[0])
            for shape in shapes
        }
        files = {key(*shape): _path(name, *shape) for shape in shapes}
        for at, program in programs.items():
            (folder / files[at]).write_bytes(portable("stablehlo", program, version))
        weights, inputs = _the_same(name, {at: argument_names(program) for at, program in programs.items()})
        signatures[name] = {
            "files": files,
            "weights": weights,
            "inputs": inputs,
            "outputs": output_names(next(iter(programs.values()))),
            **({"length": one.signature.sequence.most} if one.signature.sequence else {}),
        }
    return {"platform": platform, "stablehlo_version": version, "entry": ENTRY, "signatures": signatures}


def covers(facts: Mapping[str, Any], batches: Sequence[int] = (), platform: str = "") -> bool:
    """Whether what was written has a file for each of `batches`, lowered for `platform` if it is given."""
    wanted = set(batches or BATCHES)
    return platform in ("", facts["platform"]) and all(
        wanted <= {batch_of(each) for each in one["files"]} for one in facts["signatures"].values()
    )


def key(batch: int, sizes: Mapping[str, int]) -> str:
    """Of a file among those of a signature: "4", or "4,k=2"."""
    return ",".join([str(batch), *(f"{symbol}={size}" for symbol, size in sizes.items())])


def batch_of(key: str) -> int:
    """The batch in what `key` gave."""
    return int(key.partition(",")[0])


def _path(name: str, batch: int, sizes: Mapping[str, int]) -> str:
    return ".".join([f"{FOLDER}/{name}", f"b{batch}", *(f"{s}{size}" for s, size in sizes.items()), "mlirbc"])


def _sizes(signature: Signature) -> tuple[dict[str, int], ...]:
    """What the further symbols are in the programs: of none the empty one. BadSpec where nothing says it."""
    if not signature.combinations:
        names = ", ".join(repr(name) for name in sorted(signature.free))
        raise BadSpec(
            f"stablehlo: {signature.name!r} has sizes {names} beside the batch, and its programs have fixed ones; say which "
            "with sizes={...}, or leave this format out"
        )
    return signature.combinations


def _at_sizes(one: ProvenSignature, sizes: Mapping[str, int]) -> ProvenSignature:
    return replace(one, signature=one.signature.at_sizes(sizes))


def _the_same(name: str, arguments: Mapping[str, tuple[list[str], list[str]]]) -> tuple[list[str], list[str]]:
    """The arguments of every program of a signature. ExportRefused where one leaves something out that another uses."""
    (first, common), *others = arguments.items()
    for at, each in others:
        if each != common:
            raise ExportRefused(
                f"stablehlo: {name!r} uses other weights or inputs at {at} than at {first}; leave this format out"
            )
    return common


def _version() -> str:
    """What readers of the last twelve weeks read: JAX's own choice for PJRT plugins."""
    from jax.extend.mlir.dialects import stablehlo

    asked = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    return stablehlo.get_version_from_compatibility_requirement(asked)


def runner(written: Written, signature: Signature) -> Answers:
    """The signature as IREE answers it on this machine's CPU; None for more rows than the largest batch."""
    facts = written.facts["signatures"][signature.name]
    weights = written.weights()
    first = [np.asarray(weights[name]) for name in facts["weights"]]
    batches = sorted({batch_of(each) for each in facts["files"]})
    compiled: dict[str, Callable[..., Any]] = {}

    def run(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray] | None:
        rows, sizes = len(next(iter(inputs.values()))), _sizes_of(signature, inputs)
        batch = next((b for b in batches if b >= rows), None)
        if batch is None or sizes is None:
            return None
        at = key(batch, sizes)
        if at not in compiled:
            compiled[at] = _compile(written.at(facts["files"][at]))
        padded = _pad(signature, inputs, batch)
        results = compiled[at](*first, *(padded[name] for name in facts["inputs"]))
        results = results if isinstance(results, list | tuple) else (results,)
        outputs = dict(zip(facts["outputs"], map(np.asarray, results), strict=True))
        return _cut(signature, outputs, rows, inputs)

    return run  # pyright: ignore[reportReturnType]


def _sizes_of(signature: Signature, inputs: Mapping[str, np.ndarray]) -> dict[str, int] | None:
    """What the further symbols are in these inputs; None where that is nothing a program is for."""

    def fits(tensors: Sequence[TensorInfo]) -> bool:
        return all(
            isinstance(size, str) or size == has
            for tensor in tensors
            for size, has in zip(tensor.shape, inputs[tensor.name].shape, strict=True)
        )

    return next((each for each in signature.combinations if fits(signature.at_sizes(each).inputs)), None)


def _compile(path: Path) -> Callable[..., Any]:
    program = library("iree.compiler").compile_file(
        str(path),
        target_backends=["llvm-cpu"],
        input_type="stablehlo",
        extra_args=["--iree-llvmcpu-target-cpu=host"],
    )
    return library("iree.runtime").load_vm_flatbuffer(program, driver="local-task")[ENTRY]


def _pad(signature: Signature, inputs: Mapping[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    """Rows are repeated up to the batch, sequences padded to the longest."""
    padded = {}
    for tensor in signature.inputs:
        array: np.ndarray = np.resize(inputs[tensor.name], (batch, *inputs[tensor.name].shape[1:]))
        if signature.sequence is not None and signature.sequence.symbol in tensor.shape:
            behind = signature.sequence.most - int(np.shape(array)[1])
            widths = [(0, 0), (0, behind)] + [(0, 0)] * (array.ndim - 2)
            array = np.pad(array, widths, constant_values=signature.pad.get(tensor.name, 0))
        padded[tensor.name] = np.ascontiguousarray(array)
    return padded


def _cut(
    signature: Signature,
    outputs: Mapping[str, np.ndarray],
    rows: int,
    inputs: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    symbol = signature.sequence.symbol if signature.sequence else None
    length = next((inputs[t.name].shape[1] for t in signature.inputs if symbol in t.shape), 0)
    return {
        t.name: outputs[t.name][:rows, :length] if symbol in t.shape else outputs[t.name][:rows]
        for t in signature.outputs
    }


def runtime() -> str:
    from importlib.metadata import version

    return f"iree {version('iree-base-compiler')}"
