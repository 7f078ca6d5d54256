"""What a person needs to know of a bundle to call it, keep it and trust it."""

from collections.abc import Iterator, Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from converters.bundle import Bundle
from converters.cuts import said
from converters.manifest import UNSIZED, Manifest, Signature, StoredWeights
from converters.manifest_json import to_json
from converters.program import operation_counts
from converters.window import AFTER, EARLIER, INSIDE, UNKNOWN, released

DEFAULT_SIGNATURE = "predict"  # what a request means that names none
TEXT_LIMIT = 200_000  # characters of a program's text on a terminal


def summary(bundle: Bundle) -> str:
    """Several lines for a terminal."""
    return "\n".join(_lines(bundle))


def _lines(bundle: Bundle) -> Iterator[str]:
    m = bundle.manifest
    yield f"{m.model} version {bundle.version or '(none)'} at {bundle.path}"
    yield ""
    for signature in m.signatures.values():
        yield f"signature    {signature.name}"
        for kind, tensors in (("takes", signature.inputs), ("gives", signature.outputs)):
            for tensor in tensors:
                yield f"  {kind}      {tensor}"
        yield f"  batch      {signature.batch_symbol}: any number of rows{_in_batches(signature)}{_alike(signature)}"
        if signature.loss:
            yield "  loss       one number for the batch: no server serves it"
        if signature.vjp_order:
            yield f"  gradients  up to order {signature.vjp_order}, by weights and inputs of floating point"
        if signature.sequence is not None:
            yield f"  length     {signature.sequence.symbol}: 1 to {signature.sequence.most}"
        for dim, (least, most) in signature.bounds.items():
            compiled = signature.sizes.get(dim, ())
            served = f"; a server compiles {', '.join(map(str, compiled))}" if compiled else ""
            yield f"  size       {dim}: {_between(least, most)}{served}"
        if signature.free and not signature.sizes:
            yield f"             no server takes it: {UNSIZED}"
    yield f"runs on      {', '.join(m.platforms)}; {_devices(m)}, matmul precision {m.matmul_precision}"
    count = sum(_elements(w.shape) for w in m.weights)
    yield f"weighs       {count:,} weights in {len(m.weights)} arrays, {_size(m.weight_bytes)} stored"
    if m.stored_weights is not None:
        for line in stored_lines(m.stored_weights):
            yield f"stored       {line}"
    for signature in m.signatures.values():
        size = sum(m.files[path].bytes for path in signature.programs.values())
        name = f" of {signature.name}" if len(m.signatures) > 1 else ""
        yield f"program      {_size(size)}{name}, sha256 {signature.program_sha256[:16]}…"
    for code, reason in m.allowed.items():
        yield f"allowed      {code}: {reason}"
    for name, facts in m.formats.items():
        size = sum(digest.bytes for path, digest in m.files.items() if path.startswith(f"{name}/"))
        yield f"{name:<12} {_size(size)}{_checked(facts)}"
    yield f"comes from   {_origin(m)}"
    yield f"written      {m.created_at} by jax {m.jax_version}, jaxlib {m.jaxlib_version}, StableHLO {m.stablehlo_version}"
    yield f"loads        {window(m)}"
    if not m.window.exact:
        yield f"             jaxlib {m.window.jaxlib} is not known here: released on {m.window.released} or later"
    yield f"may refuse   {outside(m)}"
    yield f"here         {here(m)}"
    for platform, tolerances in m.tolerances.items():
        for name, t in tolerances.items():
            yield f"tolerance    {platform} {name}: |error| <= {t.atol:.3g} + {t.rtol:.3g} |value|"
    yield ""
    for signature in m.served.values():
        yield "call it      " + _cli_call(m, signature)
        yield "or           " + _python_call(m, signature)
    for signature in m.signatures.values():
        if signature.loss or signature.vjp_order:
            yield "in Python    " + _loaded_call(bundle, signature)


def _in_batches(signature: Signature) -> str:
    if not signature.batches:
        return ""
    return (
        f", run as {', '.join(map(str, signature.batches))}: padded to the next, and split over the largest"
    )


def _alike(signature: Signature) -> str:
    if not signature.rows:
        return ""
    how = "bit for bit" if signature.rows == "bitwise" else "within the tolerance"
    return f"; others beside a row leave it as it is {how}"


def _between(least: int | None, most: int | None) -> str:
    if most is None:
        return "any size" if least is None else f"at least {least}"
    return f"at most {most}" if least is None else f"{least} to {most}"


def stored_lines(stored: StoredWeights) -> Iterator[str]:
    """What the weights lost, and what that did to the outputs."""
    saved = f"{_size(stored.bytes_before)} became {_size(stored.bytes_after)}"
    yield f"{len(stored.computes_in)} arrays in {stored.dtype}: {saved}"
    for name, error in stored.errors.items():
        yield f"{name} differs from the original's by at most {error.largest:.3g}, {error.relative:.2%} of its largest value"


def window(manifest: Manifest) -> str:
    """Which releases read the program, as advice: those of JAX's promise, whatever the date is today."""
    promised = manifest.window
    if promised.exact:
        days = f"from {promised.begins} to {promised.ends}"
    else:
        days = f"until {promised.ends} at least"
    renew = "refresh" if manifest.of_a_run else "export it again"
    return f"in every jaxlib released {days}: {renew} before upgrading JAX past that"


def outside(manifest: Manifest) -> str:
    """The known releases that may refuse the program, as ranges: "0.11.2 and older; 0.13.0, 0.13.1"."""
    promised = manifest.window
    older = [name for name in promised.may_refuse if promised.place(name) == EARLIER]
    newer = [name for name in promised.may_refuse if promised.place(name) == AFTER]
    parts = [f"{older[-1]} and older"] if older else []
    return "; ".join([*parts, *([", ".join(newer)] if newer else [])]) or "none of those known"


def here(manifest: Manifest) -> str:
    """What is promised to the jaxlib of this process."""
    promised, reader = manifest.window, installed("jaxlib")
    day, exact = released(reader)
    says = {
        INSIDE: "reads it",
        AFTER: "may refuse it: newer than the window",
        EARLIER: "may refuse it: older than the window",
        UNKNOWN: "may refuse it: whether it is in the window is not known",
    }
    return f"jaxlib {reader}, released {'on' if exact else 'after'} {day}, {says[promised.place(reader)]}"


def as_json(bundle: Bundle) -> dict[str, Any]:
    """The manifest, and what is derived from it."""
    import json

    derived = {
        "path": str(bundle.path),
        "version": bundle.version,
        "swap_key": bundle.swap_key,
        "weight_bytes": bundle.manifest.weight_bytes,
        "window": window(bundle.manifest),
        "loads": _loads(bundle.manifest),
    }
    return derived | {"manifest": json.loads(to_json(bundle.manifest))}


def _loads(manifest: Manifest) -> dict[str, Any]:
    promised, reader = manifest.window, installed("jaxlib")
    return {
        "released": promised.released.isoformat(),
        "released_is_exact": promised.exact,
        "begins": promised.begins.isoformat(),
        "ends": promised.ends.isoformat(),
        "may_refuse": list(promised.may_refuse),
        "here": {"jaxlib": reader, "place": promised.place(reader)},
    }


def program_text(bundle: Bundle, signature: str) -> tuple[str, str]:
    """(the program as StableHLO text, one line of operation counts); of several the one for the largest batch."""
    exported = bundle.exported(signature, max(bundle.signature(signature).programs))
    counts = operation_counts(exported)
    line = ", ".join(f"{name.removeprefix('stablehlo.')} {count}" for name, count in counts.most_common())
    return exported.mlir_module(), f"{sum(counts.values())} operations: {line}"


def _checked(facts: Mapping[str, Any]) -> str:
    """With what a format was run before it was published."""
    checked = facts.get("checked")
    if not isinstance(checked, Mapping):
        return ", lowered only: it was not run where it was exported"
    return f", run by {_said(checked.get('with'))}: worst difference {_said(checked.get('worst_difference', 0), '.2g')}"


def _origin(m: Manifest) -> str:
    """Of what stands in the provenance, where whoever exports writes what they like."""
    p = m.provenance
    if not m.of_a_run:
        return f"function {_said(p.get('function', 'unknown'))}"
    metrics = ", ".join(f"{name} {_said(value, '.4g')}" for name, value in sorted(_of(p, "metrics").items()))
    data, before = _of(p, "data").get("name", "unknown data"), _of(p, "refreshes")
    again = (
        f"; refreshes version {_said(before.get('version'))}, of jax {_said(before.get('jax_version'))}"
        if before
        else ""
    )
    run, preset, step = (_said(p.get(key)) for key in ("run", "preset", "step"))
    return f"run {run} (preset {preset}), step {step}, {_said(data)}" + (
        f"; {metrics}{again}" if metrics else again
    )


def _of(provenance: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What stands there; nothing where that is no mapping."""
    found = provenance.get(key)
    return found if isinstance(found, Mapping) else {}


def _said(value: Any, form: str = "") -> str:
    """A value for a line; a number by its format."""
    try:
        return format(value, form if isinstance(value, int | float) else "")
    except (TypeError, OverflowError):  # of a list; of a number that no float holds
        return str(value)


def _cli_call(m: Manifest, signature: Signature) -> str:
    tokenizer = m.usage.get("tokenizer")
    if signature.name == DEFAULT_SIGNATURE and tokenizer in ("bytes", "huggingface"):
        with_it = " --tokenizer tokenizer.json" if tokenizer == "huggingface" else ""
        return f'jaxport predict {m.model} --text "import "{with_it}'
    inputs = " ".join(f"--input {t.name}=@{t.name}.npy" for t in signature.inputs)
    which = "" if signature.name == DEFAULT_SIGNATURE else f" --signature {signature.name}"
    return f"jaxport predict {m.model}{which} {inputs}"


def _python_call(m: Manifest, signature: Signature) -> str:
    inputs = ", ".join(f'"{t.name}": {t.name}' for t in signature.inputs)
    which = "" if signature.name == DEFAULT_SIGNATURE else f', signature="{signature.name}"'
    call = f'Client("localhost:8500").predict("{m.model}", {{{inputs}}}{which})'
    return f'{call}["{_first_output(signature)}"]'


def _loaded_call(bundle: Bundle, signature: Signature) -> str:
    inputs = "".join(f", {t.name}={t.name}" for t in signature.inputs)
    call = f'load_bundle("{bundle.path}")["{signature.name}"].apply(weights{inputs})'
    return f'{call}["{_first_output(signature)}"], under jax.grad' if signature.vjp_order else call


def _devices(m: Manifest) -> str:
    if not m.mesh:
        return "1 device"
    return f"{m.nr_devices} devices ({said(m.mesh)}; {len(m.shardings)} of {len(m.weights)} weights cut over them)"


def _first_output(signature: Signature) -> str:
    return signature.outputs[0].name


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def save_text(text: str, file: Path | None) -> str:
    """Writes `text` to a file, or caps it for a terminal; returns what is to be printed."""
    if file is not None:
        file.write_text(text)
        return f"{len(text):,} characters of StableHLO in {file}"
    if len(text) <= TEXT_LIMIT:
        return text
    return (
        f"{text[:TEXT_LIMIT]}\n… {len(text) - TEXT_LIMIT:,} characters more; --stablehlo FILE writes them all"
    )
