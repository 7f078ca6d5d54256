"""Where a factory's result is looked at, before anything is made of it: what is wrong is one line that names the part."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from train_job.errors import UsageError
from train_job.guarded import GuardedTask, own_code
from train_job.presets import Preset, Task
from train_job.settings import RUN_NAME, RUN_NAME_NEEDS, Hyperparameters, Upkeep, check_value

_TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool}  # of the fields of settings
_METHODS = ("load", "loss", "signature", "example_inputs", "predict", "report", "positions")
_OWN = ("load", "loss", "signature", "example_inputs")  # without a default


def preset_from(path: str, named: str) -> Preset:
    """Imports the module of "package.module:factory", calls the factory and checks what it gives.

    named: what a person would call it, "--model convnet:digits", with which every error begins.

    Raises:
        UsageError: naming what is missing or wrong. OwnCodeFailed: the module or the factory raised.
    """
    preset = _call(_factory(path, named), named)
    if not isinstance(preset, Preset):
        raise UsageError(f"{named} gave a {_kind(preset)}, needs a train_job.presets.Preset")
    wrongs = (
        _wrong_name(preset),
        _wrong_model(preset.model),
        _wrong_task(preset.task),
        _wrong_optimizer(preset.optimizer),
    )
    for wrong in wrongs:
        if wrong:
            raise UsageError(f"{named}: {wrong}")
    _check_settings(preset, named)
    return replace(preset, task=GuardedTask(preset.task, named))


def _factory(path: str, named: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    # As `python -m` does, so that a module beside the user is found by the command too.
    if here not in sys.path:
        sys.path.append(here)
    try:
        with own_code(f"{named}: import of {module_name}", but=ModuleNotFoundError):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{named}: cannot import {module_name!r} from {here}: {error}; start it in the folder that holds it, or "
            "install it"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(f"{named}: {module_name!r} holds no function {attribute!r}")
    return factory


def _call(factory: Callable[..., Any], named: str) -> Any:
    try:
        needed = [
            name
            for name, parameter in inspect.signature(factory).parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except ValueError:  # of what is written in C
        needed = []
    if needed:
        raise UsageError(
            f"{named} needs {', '.join(needed)}: it is called without arguments; give each a default"
        )
    with own_code(named):
        return factory()


def _wrong_name(preset: Preset) -> str:
    if isinstance(preset.name, str) and RUN_NAME.fullmatch(preset.name):
        return ""
    return f"name is {preset.name!r}, needs {RUN_NAME_NEEDS}: it is the run's name where --run gives none"


def _wrong_model(model: Any) -> str:
    if isinstance(model, type):
        return f"model is the class {model.__name__}, needs an instance: {model.__name__}(...)"
    if not is_dataclass(model):
        return f"model is a {_kind(model)}, needs a dataclass: its fields tell one run from another"
    if not callable(getattr(model, "build", None)):
        return f"model {_kind(model)} has no method build(rngs), which makes the module"
    values = asdict(cast(Any, model))
    for entry in fields(model):
        try:
            json.dumps(values[entry.name], allow_nan=False)
        except TypeError:
            found = _kind(getattr(model, entry.name))
            return (
                f"model {_kind(model)}: its field {entry.name} is a {found}, needs a number, a text, or lists and dicts "
                "of them: the run's record keeps it"
            )
        except (
            ValueError
        ):  # NaN is in no JSON, and equals nothing, so that such a run would be another at each start
            return (
                f"model {_kind(model)}: its field {entry.name} is {values[entry.name]!r}, needs finite numbers: the run's "
                "record keeps it"
            )
    rules = getattr(model, "tensor_parallel", {})
    if not isinstance(rules, Mapping):
        return f"model {_kind(model)}: tensor_parallel is a {_kind(rules)}, needs patterns of weights' names -> axes"
    return ""


def _wrong_task(task: Any) -> str:
    if isinstance(task, type):
        return f"task is the class {task.__name__}, needs an instance: {task.__name__}()"
    for name in _METHODS:
        method = getattr(task, name, None)
        if not callable(method) or (name in _OWN and getattr(type(task), name, None) is getattr(Task, name)):
            cure = "" if name in _OWN else "; a subclass of train_job.presets.Task inherits one"
            return f"task {_kind(task)} has no method {name}{cure}"
    for name in ("unit", "headline"):
        if not isinstance(found := getattr(task, name, None), str) or not found:
            return f"task {_kind(task)}: {name} is {found!r}, needs a text; train_job.presets.Task has one"
    return ""


def _wrong_optimizer(own: Any) -> str:
    if own is None or (callable(own) and "<" not in getattr(own, "__qualname__", "<")):
        return ""
    return (
        f"optimizer is {'a lambda or local function' if callable(own) else f'a {_kind(own)}'}, needs a function of a module "
        "that takes the Hyperparameters and gives an optax.GradientTransformation: a run is told from another by its name"
    )


def _check_settings(preset: Preset, named: str) -> None:
    for name, settings, kind in (("hyper", preset.hyper, Hyperparameters), ("upkeep", preset.upkeep, Upkeep)):
        if not isinstance(settings, kind):
            raise UsageError(
                f"{named}: {name} is a {_kind(settings)}, needs train_job.settings.{kind.__name__}"
            )
        for entry in fields(settings):
            value = getattr(settings, entry.name)
            wrong = f"found {value!r}, needs {entry.metadata['accepts']}"
            if not isinstance(value, _TYPES[str(entry.type)]):
                raise UsageError(f"{named}: {name}.{entry.name}: {wrong}")
            try:
                check_value(entry.name, value)
            except UsageError:
                raise UsageError(f"{named}: {name}.{entry.name}: {wrong}") from None


def _kind(value: Any) -> str:
    return type(value).__name__
