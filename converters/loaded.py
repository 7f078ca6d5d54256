"""A bundle as an object of this process, without a server: what it predicts, and its programs as functions.

    from converters import load_bundle

    loaded = load_bundle("models/iris/1")
    loaded.predict(x=rows)["logits"]

jax, numpy, flatbuffers and orbax are all it needs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import jax
import jax.export
import numpy as np

from converters.bundle import Bundle, open_bundle
from converters.dims import all_hold, constraint_symbols, symbols
from converters.dims import size as size_of
from converters.errors import BadInput, NoGradient, PlatformMissing
from converters.gradient import differentiable
from converters.manifest import Manifest, TensorInfo
from converters.placement import Placement, place
from converters.run import Run, calling, program_runner

# Cotangents by output -> (those of the weights, those of the inputs), by name.
Pullback = Callable[[Mapping[str, Any]], tuple[dict[str, jax.Array], dict[str, jax.Array]]]
DEFAULT_SIGNATURE = "predict"
# How jax.export begins, which finds the symbols in the shapes of a call.
UNSOLVED = "Input shapes do not match the polymorphic shapes specification."
WIDE = frozenset({"int64", "uint64", "float64", "complex128"})


def load_bundle(path: Path | str) -> "LoadedBundle":
    """The bundle at `path`, models/<name>/<version>, with its weights in memory.

    Every file is hashed before anything of it is parsed. Raises BundleNotFound, BundleError (a file is missing,
    altered, or not what the manifest says), PlatformMissing (it has no program for this machine's device, or its
    programs are for more devices than there are).
    """
    bundle = open_bundle(path)
    check_platform(bundle)
    return LoadedBundle(bundle)


def check_platform(bundle: Bundle) -> str:
    """jax.export's name of this machine's platform; PlatformMissing where the bundle has no program for it."""
    platform = jax.export.default_export_platform()
    if platform not in bundle.manifest.platforms:
        raise PlatformMissing(
            f"{bundle.path}: has programs for {', '.join(bundle.manifest.platforms)}, this machine is {platform}; "
            f"use it on one of those, or export with --platforms {platform}"
        )
    return platform


class LoadedBundle:
    """The functions of a bundle by the names of its signatures: loaded["embed"], and loaded.predict for "predict".

    weights: every weight by name, on the host. Other values of the same shapes and dtypes can take their place in
    `LoadedSignature.apply`. placement: where they lie when the programs are for several devices, None for one:
    `loaded.placement.place(weights)` puts others there, which `apply` then needs.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.placement = Placement.of(bundle.manifest, str(bundle.path))
        self.weights: dict[str, np.ndarray] = bundle.load_weights()
        self._functions: dict[str, LoadedSignature] = {}

    @property
    def manifest(self) -> Manifest:
        """All that the bundle says of itself."""
        return self.bundle.manifest

    @property
    def predict(self) -> "LoadedSignature":
        """The signature that is meant where none is named. Raises BundleNotFound where there is none of that name."""
        return self[DEFAULT_SIGNATURE]

    def vjp(self, weights: Mapping[str, Any], **inputs: Any) -> tuple[dict[str, jax.Array], Pullback]:
        """`LoadedSignature.vjp` of `predict`."""
        return self.predict.vjp(weights, **inputs)

    def __getitem__(self, name: str) -> "LoadedSignature":
        """A signature by name. Raises BundleNotFound for one that there is not, BundleError for one that does not load."""
        if name not in self._functions:
            self._functions[name] = LoadedSignature(self, name)
        return self._functions[name]

    def __repr__(self) -> str:
        return f"<{self.bundle.path}: {', '.join(self.manifest.signatures)}>"

    @cached_property
    def on_device(self) -> dict[str, jax.Array]:
        """The weights on JAX's default device, or on those that the programs are for, put there when they are first used."""
        with wide(weight.dtype.name for weight in self.weights.values()):
            return place(self.weights, self.placement)


class LoadedSignature:
    """One function of a bundle: called with arrays it predicts; `apply` is the same for JAX to transform."""

    def __init__(self, loaded: LoadedBundle, name: str) -> None:
        self.signature = loaded.bundle.signature(name)
        self._programs = loaded.bundle.programs(name)
        self._loaded = loaded
        self._where = f"{loaded.bundle.path} {name}"
        dtypes = (
            t.dtype for t in (*self.signature.inputs, *self.signature.outputs, *loaded.manifest.weights)
        )
        self._dtypes = frozenset(dtypes)

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        """What the function gives, by name, on the host, with the weights of the bundle. Compiled once per shape.

        inputs: arrays of the signature's dtypes and shapes. Raises BadInput for what does not fit.
        """
        self._check(inputs)
        with wide(self._dtypes), self._explained():
            return self._run({name: np.asarray(array) for name, array in inputs.items()})

    def apply(self, weights: Mapping[str, Any], **inputs: Any) -> dict[str, jax.Array]:
        """What the function gives, by name, with any weights of the bundle's names, shapes and dtypes.

        To be used inside jax.jit: alone it is traced at every call. jax.grad and jax.vjp go through it, with respect to
        weights and to inputs of floating point, as often as the signature's vjp_order says; jax.vmap and jax.jvp do
        not, since an exported program has no rule for either. Raises BadInput for what does not fit, NoGradient where
        it is differentiated more often.
        """
        if self._dtypes & WIDE and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
            raise BadInput(
                f"{self._where}: has arrays of {', '.join(sorted(self._dtypes & WIDE))}, which JAX keeps only with "
                "JAX_ENABLE_X64=1; set it, or jax.config.update('jax_enable_x64', True)"
            )
        self._check(inputs)
        for weight in self._loaded.manifest.weights:
            if weight.name not in weights:
                raise BadInput(
                    f"{self._where}: weight {weight.name!r} is missing; pass all of loaded.weights"
                )
            self._check_array(
                "weight", TensorInfo(weight.name, weight.dtype, weight.shape), weights[weight.name], {}
            )
        known = {weight.name: weights[weight.name] for weight in self._loaded.manifest.weights}
        if len(known) < len(weights):
            raise BadInput(
                f"{self._where}: {min(set(weights) - set(known))!r} is no weight; pass those of loaded.weights"
            )
        with self._explained():
            return cast("dict[str, jax.Array]", self._function(known, inputs))

    def vjp(self, weights: Mapping[str, Any], **inputs: Any) -> tuple[dict[str, jax.Array], Pullback]:
        """(outputs by name, pullback), as jax.vjp of `apply`. pullback: from cotangents of the outputs, by name and of their
        shapes and dtypes, to those of the weights and of the inputs, each by name; of integers they are float0. Raises as
        `apply`.
        """
        return jax.vjp(lambda weights, inputs: self.apply(weights, **inputs), dict(weights), inputs)

    @cached_property
    def _function(self) -> Any:
        order = self.signature.vjp_order
        calls = {
            batch: differentiable(exported, order, self._no_gradient, self._explained)
            for batch, exported in self._programs.items()
        }
        return calling(calls, self.signature.pad)

    def _no_gradient(self) -> NoGradient:
        has = self.signature.vjp_order
        return NoGradient(
            f"{self._where}: was exported with gradients up to order {has}, and {has + 1} is asked for; export it again "
            f"with --vjp-order {has + 1} (export_bundle: vjp_order={has + 1})"
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What JAX says of a transformation that it has no rule for, in words that help."""
        try:
            yield
        except NotImplementedError as error:  # of jax.vmap, and of what is made of it, as jax.jacrev
            raise BadInput(
                f"{self._where}: jax.vmap cannot go through an exported program; pass the rows as one batch, and for "
                "jax.jacrev take jax.vjp once per output"
            ) from error
        except ValueError as error:  # a size of 2*k that is odd, where no input has k alone
            if not str(error).startswith(UNSOLVED):
                raise
            takes = ", ".join(map(str, self.signature.inputs))
            raise BadInput(
                f"{self._where}: no sizes of the symbols make these shapes; needed: {takes} "
                f"({' '.join(str(error)[len(UNSOLVED) :].split('Using the following')[0].split())[:200]})"
            ) from None
        except TypeError as error:
            if "forward-mode" not in str(error):
                raise
            raise BadInput(
                f"{self._where}: jax.jvp cannot go through an exported program; take jax.vjp or jax.grad"
            ) from error

    def __repr__(self) -> str:
        takes, gives = (", ".join(map(str, each)) for each in (self.signature.inputs, self.signature.outputs))
        return f"<{self._where}: {takes} -> {gives}>"

    @cached_property
    def _run(self) -> Run:
        return program_runner(self._programs, self._loaded.on_device, self.signature.pad)

    def _check(self, inputs: Mapping[str, Any]) -> None:
        """BadInput for names, dtypes and shapes that are not the signature's."""
        names = [tensor.name for tensor in self.signature.inputs]
        wrong = sorted(set(inputs) ^ set(names))
        if wrong:
            what = "is missing" if wrong[0] in names else "is no input"
            raise BadInput(
                f"{self._where}: {wrong[0]!r} {what}; it takes {', '.join(map(str, self.signature.inputs))}"
            )
        sizes: dict[str, int] = {}
        made = [
            t for t in self.signature.inputs if any(str(s) not in symbols(s) for s in t.shape if symbols(s))
        ]
        # Once more those with a size that is made of symbols: the input that has the symbol may come behind.
        for tensor in (*self.signature.inputs, *made):
            self._check_array("input", tensor, inputs[tensor.name], sizes)
        for constraint in self.signature.constraints:
            if not all_hold(
                (constraint,), {name: size for name, size in sizes.items() if isinstance(size, int)}
            ):
                said = ", ".join(f"{name} = {sizes[name]}" for name in sorted(constraint_symbols(constraint)))
                raise BadInput(f"{self._where}: {said}; needed: {constraint}")

    def _check_array(self, kind: str, needed: TensorInfo, array: Any, sizes: dict[str, int]) -> None:
        """sizes: of the symbols so far, updated: a symbol has one size in all inputs of a call."""
        dtype, shape = _kind(array)
        try:
            wanted = [size_of(dim, sizes) if symbols(dim) <= sizes.keys() else dim for dim in needed.shape]
        except ValueError as error:
            raise BadInput(f"{self._where}: {kind} {needed}: {error}{_said(needed, sizes)}") from None
        fits = (
            dtype == needed.dtype
            and len(shape) == len(wanted)
            and all(self._holds(size, has) for size, has in zip(wanted, shape, strict=True))
        )
        if not fits:
            ranges = "".join(f", {size} {self._range(size)}" for size in wanted if isinstance(size, str))
            raise BadInput(
                f"{self._where}: {kind} {needed.name!r} is {dtype}[{', '.join(map(str, shape))}]; needed: "
                f"{needed.dtype}[{', '.join(map(str, wanted))}]{ranges}{_said(needed, sizes)}"
            )
        for size, has in zip(wanted, shape, strict=True):
            if (
                isinstance(size, str) and size.isidentifier()
            ):  # what is made of symbols alone is JAX's to solve
                sizes[size] = has

    def _holds(self, size: int | str, has: int) -> bool:
        if isinstance(size, int):
            return has == size
        sequence = self.signature.sequence
        return has >= 1 and (sequence is None or size != sequence.symbol or has <= sequence.most)

    def _range(self, symbol: str) -> str:
        sequence = self.signature.sequence
        most = sequence is not None and symbol == sequence.symbol and sequence.most
        return f"from 1 to {most}" if most else "at least 1"


def _said(needed: TensorInfo, sizes: Mapping[str, int]) -> str:
    """The sizes of the symbols that others of its dimensions are made of: ", where k is 5"."""
    made = {name for size in needed.shape for name in symbols(size) if name != size}
    said = ", ".join(f"{name} is {sizes[name]}" for name in sorted(made & sizes.keys()))
    return f", where {said}" if said else ""


def wide(dtypes: Any) -> AbstractContextManager[Any]:
    """Within, JAX keeps 64 bits where there are any: a program has the dtypes it was exported with."""
    return jax.enable_x64(True) if WIDE.intersection(dtypes) else nullcontext()


def _kind(value: Any) -> tuple[str, tuple[int, ...]]:
    """(dtype, shape) of an array, also of one that JAX is tracing, and of what numpy makes one of."""
    if not (hasattr(value, "dtype") and hasattr(value, "shape")):
        try:
            value = np.asarray(value)
        except (TypeError, ValueError):  # a ragged list, or whatever else is no array
            return type(value).__name__, ()
    return value.dtype.name if hasattr(value.dtype, "name") else str(value.dtype), tuple(value.shape)
