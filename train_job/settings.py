"""What a run is asked to do: frozen, made once from the flags, and free of JAX so that mistakes cost no import.

`Hyperparameters` decide the numbers and are part of the fingerprint: a run can be resumed only with the same
ones. `Upkeep` decides how often the run looks and saves; it may change between two starts of one run.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_job.errors import UsageError
from train_job.processes import ALONE, Processes

if TYPE_CHECKING:
    from train_job.presets import Preset

type Value = str | int | float | bool

DEFAULT_ROOT = Path("work")
DEFAULT_DATA = "stdlib"
AXES = ("data", "fsdp", "tensor")  # of the mesh; what each is for: train_job.partition
_OWN_FLAGS = {"steps": "--steps", "skip_nonfinite": "--skip-nonfinite"}
RUN_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
)  # leaves room for what is put behind it, in 255 bytes
RUN_NAME_NEEDS = "up to 128 letters, digits, '.', '_' and '-', the first a letter or digit"
_DEVICES = re.compile(r"[1-9][0-9]{0,5}")
_WINDOW = re.compile(r"([0-9]{1,15}):([0-9]{1,15})")


def _setting(default: Any, accepts: str, test: Callable[[Any], bool]) -> Any:
    return field(default=default, metadata={"accepts": accepts, "test": test})


def _one_name_of(default: str, *others: str) -> Any:
    names = (default, *others)
    return _setting(default, " or ".join(names), lambda value: value in names)


def _switch(default: bool) -> Any:
    return _setting(default, "true or false", lambda value: isinstance(value, bool))


def _positive(default: int) -> Any:
    return _setting(default, "a whole number of at least 1 and below 2**31", lambda value: 1 <= value < 2**31)


def _whole(default: int) -> Any:
    return _setting(default, "a whole number of at least 0 and below 2**31", lambda value: 0 <= value < 2**31)


def _fraction(default: float) -> Any:
    return _setting(default, "a number from 0 up to, not including, 1", lambda value: 0 <= value < 1)


@dataclass(frozen=True)
class Hyperparameters:
    """What decides the trained weights, besides the model and the data."""

    steps: int = _positive(1000)
    batch_size: int = _positive(32)  # rows per step, over all devices
    learning_rate: float = _setting(3e-4, "a number above 0", lambda value: value > 0)  # the schedule's peak
    weight_decay: float = _setting(1e-4, "a number of at least 0", lambda value: value >= 0)
    warmup_steps: int = _whole(100)  # linear from 0; cosine from there to the last step
    final_lr_fraction: float = _fraction(0.1)  # of the peak, where the cosine ends
    beta1: float = _fraction(0.9)
    beta2: float = _fraction(0.999)
    clip_norm: float = _setting(1.0, "a number of at least 0; 0 clips nothing", lambda value: value >= 0)
    seed: int = _setting(0, "a whole number from 0 to 2**31 - 1", lambda value: 0 <= value < 2**31)
    compute_dtype: str = _one_name_of(
        "float32", "bfloat16"
    )  # of activations; weights are float32 in any case
    # A step's rows are computed in so many parts, one after the other. To a model with dropout or batch statistics
    # that is another function; else the sums are added up in another order.
    accumulate: int = _positive(1)


@dataclass(frozen=True)
class Upkeep:
    """How often a run evaluates and saves, what it keeps, and what it puts up with: may change between two starts."""

    eval_every: int = _positive(100)
    checkpoint_every: int = _positive(100)
    keep_latest: int = _positive(3)
    keep_best: int = _whole(1)  # by validation loss
    keep_every: int = _whole(0)  # checkpoints at multiples of this many steps stay for good; 0: none do
    # Blocks are recomputed in the backward pass. The same function, so a run may go on with it on a smaller device; as
    # with another mesh, its last bits may differ.
    remat: bool = _switch(False)
    skip_nonfinite: int = _whole(
        0
    )  # steps in a row that may be passed over; what these computed is in no weight


@dataclass(frozen=True)
class TrainSettings:
    """One call of `train_job.job.train`, complete and checked."""

    preset: Preset
    preset_name: str  # "nano", or "package.module:factory"
    root: Path
    run: str
    data: str | None  # None: the preset's own default
    hyper: Hyperparameters
    upkeep: Upkeep
    resume: bool = True
    mesh: Mapping[str, int] = field(default_factory=dict)  # devices per axis; data: what the others leave
    processes: Processes = ALONE
    metrics_port: int | None = None  # where process 0 answers a Prometheus; 0: any free one; None: nowhere
    metrics_host: str = "127.0.0.1"
    profile: tuple[int, int] | None = None  # (A, B): the steps after A up to B are traced

    @property
    def run_dir(self) -> Path:
        """Where everything this run writes lies."""
        return self.root / "runs" / self.run

    @classmethod
    def from_flags(
        cls,
        preset: str | None = None,
        root: str | Path = DEFAULT_ROOT,
        run: str | None = None,
        steps: int | None = None,
        data: str | None = None,
        overrides: Mapping[str, str] | None = None,
        resume: bool = True,
        model: str | None = None,
        mesh: str | None = None,
        processes: Processes = ALONE,
        metrics_port: str | int | None = None,
        metrics_host: str = "127.0.0.1",
        skip_nonfinite: str | int | None = None,
        profile: str | None = None,
    ) -> TrainSettings:
        """Checks what a person typed and completes it with the preset's defaults.

        Raises:
            UsageError: neither or both of preset and model, an unknown preset or key, a value out of range,
            empty, or that does not fit another.
        """
        name = _one_of(preset, model)
        given = parse_overrides(overrides or {})  # before the import: a typo should not cost seconds
        _check_run_name(run)
        _check_data(data)
        axes = _parse_mesh(mesh)
        port = _parse_port(metrics_port)
        window = _parse_profile(profile)
        for key, value in {"steps": steps, "skip_nonfinite": skip_nonfinite}.items():
            if value is not None:
                given |= {key: check_value(key, value)}
        chosen = _load_preset(name, data)
        hyper = dataclasses.replace(chosen.hyper, **_of(Hyperparameters, given))
        _check_parts(hyper)
        _check_window(window, hyper.steps)
        return cls(
            preset=chosen,
            preset_name=name,
            root=Path(root),
            run=run or chosen.name,
            data=data,
            hyper=hyper,
            upkeep=dataclasses.replace(chosen.upkeep, **_of(Upkeep, given)),
            resume=resume,
            mesh=axes,
            processes=processes,
            metrics_port=port,
            metrics_host=metrics_host,
            profile=window,
        )


def accepted_keys() -> dict[str, dataclasses.Field[Any]]:
    """Every key `--set` takes, with the field it sets."""
    return {entry.name: entry for group in (Hyperparameters, Upkeep) for entry in dataclasses.fields(group)}


def flag_of(key: str) -> str:
    """How a person sets what `accepted_keys` names: "--steps", "--set batch_size"."""
    return _OWN_FLAGS.get(key, f"--set {key}")


def parse_overrides(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Turns `--set` texts into checked values.

    Raises:
        UsageError: naming the key, the value found and what would be accepted.
    """
    return {key: check_value(key, text) for key, text in overrides.items()}


def check_value(key: str, value: Value) -> Value:
    """Reads one setting; `key` is a name of `accepted_keys`. Raises UsageError as `parse_overrides` does."""
    known = accepted_keys()
    if key not in known:
        raise UsageError(f"--set {key}: no such setting; accepted are {', '.join(sorted(known))}")
    entry = known[key]
    refused = UsageError(f"{flag_of(key)}: found {value!r}, needs {entry.metadata['accepts']}")
    try:
        read = _READERS[str(entry.type)](value)
    except (KeyError, ValueError):
        raise refused from None
    if (isinstance(read, float) and not math.isfinite(read)) or not entry.metadata["test"](read):
        raise refused
    return read


def _number[N: (int, float)](kind: Callable[[Any], N], value: Any) -> N:
    """As people write one; Python's own 1_000 is more often a slip than meant. Raises ValueError."""
    if "_" in str(value):
        raise ValueError(value)
    return kind(value)


_READERS: dict[str, Callable[[Any], Value]] = {
    "int": partial(_number, int),
    "float": partial(_number, float),
    "str": str,
    "bool": lambda value: {"true": True, "false": False}[str(value).lower()],
}


def _check_parts(hyper: Hyperparameters) -> None:
    if hyper.batch_size % hyper.accumulate:
        raise UsageError(
            f"--set accumulate: found {hyper.accumulate}, needs a divisor of batch_size, the {hyper.batch_size} rows "
            "of a step"
        )


def _of(group: type, given: Mapping[str, Value]) -> dict[str, Any]:
    names = {entry.name for entry in dataclasses.fields(group)}
    return {key: value for key, value in given.items() if key in names}


def _load_preset(name: str, data: str | None) -> Preset:
    from train_job.data.shards import tokenization_at
    from train_job.preemption import Preemption
    from train_job.presets import get_preset

    with Preemption() as preemption, preemption.nothing_to_save():
        # Imports JAX and perhaps the user's world: seconds, in which a signal may come.
        return get_preset(name).on(tokenization_at(data))


def _one_of(preset: str | None, model: str | None) -> str:
    if preset is not None and model is None:
        return preset
    if model is not None and preset is None:
        module, _, factory = model.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), factory)):
            raise UsageError(f"--model: found {model!r}, needs package.module:factory")
        return model
    found = "neither" if preset is None else "both"
    raise UsageError(f"found {found} of --preset and --model; needs exactly one, e.g. --preset nano")


def _check_run_name(run: str | None) -> None:
    if run is not None and not RUN_NAME.fullmatch(run):
        raise UsageError(f"--run: found {run!r}, needs a folder name of {RUN_NAME_NEEDS}")


def _check_data(data: str | None) -> None:
    if data == "":  # an unset variable of a script, not a wish for the default
        raise UsageError(
            "--data: found '', needs a path, a glob, a folder of token shards, tinyshakespeare or stdlib; leave --data out for "
            "the default"
        )


def _parse_port(port: str | int | None) -> int | None:
    if port is None:
        return None
    if not (str(port).isdecimal() and int(port) < 2**16):
        raise UsageError(
            f"--metrics-port: found {port!r}, needs a whole number from 0 (any free port) to 65535"
        )
    return int(port)


def _parse_profile(window: str | None) -> tuple[int, int] | None:
    if window is None:
        return None
    found = _WINDOW.fullmatch(window)
    if not found or int(found[1]) >= int(found[2]):
        raise UsageError(
            f"--profile: found {window!r}, needs A:B with A below B, such as 20:25 for the steps 21 to 25"
        )
    return int(found[1]), int(found[2])


def _check_window(window: tuple[int, int] | None, steps: int) -> None:
    if window is not None and window[1] > steps:
        raise UsageError(
            f"--profile: found {window[0]}:{window[1]}, needs steps up to {steps}, the planned ones (--steps)"
        )


def _parse_mesh(mesh: str | None) -> dict[str, int]:
    axes: dict[str, int] = {}
    for part in filter(None, map(str.strip, (mesh or "").split(","))):
        axis, _, size = map(str.strip, part.partition("="))
        if axis not in AXES or axis in axes or not _DEVICES.fullmatch(size):
            raise UsageError(
                f"--mesh: found {mesh!r}, needs how many devices for each axis of {', '.join(AXES)}, such as "
                "--mesh data=2,fsdp=4"
            )
        axes[axis] = int(size)
    return axes
