"""StableHLO as bytecode of fixed shapes, for PJRT plugins and IREE: stablehlo/<signature>.b<batch>.mlirbc.

The arguments are the weights by name and then the inputs by name, as the manifest's `formats` lists them; nothing is
donated. A sequence has its longest length: shorter rows are padded behind their end, as a server pads them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import BadSpec
from converters.formats import ProvenBundle
from converters.formats.answers import Answers, Written, library
from converters.manifest import ANY_BATCH, Signature

FOLDER = "stablehlo"
ENTRY = "main"
BATCHES = (1, 2, 4, 8, 16, 32)


def write(
    folder: Path, proven: ProvenBundle, batches: Sequence[int] = (), platform: str = ""
) -> dict[str, Any]:
    """Writes one file per signature and batch.

    batches: BATCHES where none is given, or those of a function that takes fixed ones. platform: whose lowering, the
    bundle's first if not given. BadSpec: a batch that is none. ExportRefused: it calls what only jaxlib has.
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
        files = {str(size): f"{FOLDER}/{name}.b{size}.mlirbc" for size in sizes}
        programs = [lower(one, proven.weights, (platform,), size) for size in sizes]
        for path, program in zip(files.values(), programs, strict=True):
            (folder / path).write_bytes(portable("stablehlo", program, version))
        weights, inputs = argument_names(programs[0])  # they are the same at every batch
        signatures[name] = {
            "files": files,
            "weights": weights,
            "inputs": inputs,
            "outputs": output_names(programs[0]),
            **({"length": one.signature.sequence.most} if one.signature.sequence else {}),
        }
    return {"platform": platform, "stablehlo_version": version, "entry": ENTRY, "signatures": signatures}


def covers(facts: Mapping[str, Any], batches: Sequence[int] = (), platform: str = "") -> bool:
    """Whether what was written has a file for each of `batches`, lowered for `platform` if it is given."""
    wanted = {str(size) for size in batches or BATCHES}
    return platform in ("", facts["platform"]) and all(
        wanted <= set(one["files"]) for one in facts["signatures"].values()
    )


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
    compiled: dict[int, Callable[..., Any]] = {}

    def run(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray] | None:
        rows = len(next(iter(inputs.values())))
        batch = min((int(b) for b in facts["files"] if int(b) >= rows), default=None)
        if batch is None:
            return None
        if batch not in compiled:
            compiled[batch] = _compile(written.folder / facts["files"][str(batch)])
        padded = _pad(signature, inputs, batch)
        results = compiled[batch](*first, *(padded[name] for name in facts["inputs"]))
        results = results if isinstance(results, list | tuple) else (results,)
        outputs = dict(zip(facts["outputs"], map(np.asarray, results), strict=True))
        return _cut(signature, outputs, rows, inputs)

    return run  # pyright: ignore[reportReturnType]


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
