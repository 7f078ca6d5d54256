"""A function of somebody's module and a checkpoint of its params as a bundle: jaxport export --fn package.module:name."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from converters.bundle import MODEL_NAME
from converters.checkpoint import fit, read_checkpoint
from converters.cuts import said
from converters.errors import BadSpec
from converters.export import SIGNATURE, check_signatures, export_signatures, parse_version_name
from converters.lint.tracing import place_in_caller
from converters.options import ExportOptions
from converters.spec import ExportSpec, SignatureSpec

NEEDED = "an ExportSpec or a SignatureSpec, or a function without arguments that gives one, is needed"


@dataclass(frozen=True)
class FunctionExport:
    """fn: "package.module:name". params: the checkpoint's folder. The bundle is <root>/models/<name>/<version>.

    options: as in export_bundle. fixed_batches: the same, of every signature but losses; None leaves what each declares.
    """

    root: Path
    fn: str
    params: Path
    name: str
    version: str = "next"
    fixed_batches: Sequence[int] | None = None
    options: ExportOptions = field(default_factory=ExportOptions)


def export_function(settings: FunctionExport, say: Callable[[str], None] = print) -> Path:
    """Writes the bundle and returns its folder. Raises BadSpec for a module, a declaration or a checkpoint that does not
    fit, and what export_bundle raises.
    """
    if not MODEL_NAME.fullmatch(settings.name):
        raise BadSpec(
            f"--name {settings.name!r}: letters, digits, '.', '_' and '-' are allowed, the first no '.'"
        )
    parse_version_name(settings.version)
    spec = load_spec(settings.fn)
    given = spec.signatures
    specs = check_signatures({SIGNATURE: given} if isinstance(given, SignatureSpec) else given)
    if settings.fixed_batches is not None:
        fixed = settings.fixed_batches
        specs = {n: s if s.loss else replace(s, fixed_batches=fixed) for n, s in specs.items()}
    options = settings.options
    if axes := options.axes:
        if not spec.shardings:
            raise BadSpec(
                f"--mesh {said(axes)}: {settings.fn} does not say how its params are cut; give its ExportSpec shardings"
            )
        options = replace(options, shardings=spec.shardings)
    params = _params(spec, settings)
    say(f"exporting {settings.fn} for {', '.join(options.platforms)}")
    return export_signatures(
        settings.root / "models" / settings.name / settings.version,
        params,
        specs,
        options,
        usage=spec.usage,
        provenance={"source": "function", "function": settings.fn, "params": settings.params.name},
    )


def load_spec(where: str) -> ExportSpec:
    """What "package.module:name" declares. BadSpec says what is wrong with it, in one line."""
    module_name, colon, attribute = where.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise BadSpec(f"--fn {where!r}: package.module:name is needed")
    module = _imported(module_name)
    if not hasattr(module, attribute):
        raise BadSpec(f"--fn {where}: module {module_name!r} has no {attribute!r}; {NEEDED}")
    found = getattr(module, attribute)
    if callable(found) and not isinstance(found, type):
        found = _run(found, f"--fn {where}: calling it without arguments failed", f"; {NEEDED}")
    if isinstance(found, SignatureSpec):
        found = ExportSpec(found)
    if not isinstance(found, ExportSpec):
        raise BadSpec(f"--fn {where}: is a {type(found).__name__}; {NEEDED}")
    return found


def _imported(name: str) -> Any:
    here = str(Path.cwd())
    if (
        here not in sys.path
    ):  # as `python -m` does, so that a module beside the user is found by the command too
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise BadSpec(
                f"--fn: there is no module {error.name!r}, neither in {here} nor installed"
            ) from None
        raise BadSpec(f"--fn: module {name!r} needs {error.name!r}, which is not installed") from error
    except SyntaxError as error:
        raise BadSpec(f"--fn: module {name!r} is no Python: {error}") from error
    # The module is the caller's: it may raise anything.
    except Exception as error:
        raise BadSpec(f"--fn: importing {name!r} failed{place_in_caller(error)}: {_told(error)}") from error


def _params(spec: ExportSpec, settings: FunctionExport) -> Any:
    source = f"--params {settings.params}"
    saved = read_checkpoint(settings.params)
    if spec.restore is not None:
        restore = spec.restore
        saved = _run(lambda: restore(saved), f"{source}: the spec's restore failed on it")
    return saved if spec.params is None else fit(saved, spec.params, source)


def _run(step: Callable[[], Any], failed: str, cure: str = "") -> Any:
    try:
        return step()
    # The code is the caller's: it may raise anything.
    except Exception as error:
        raise BadSpec(f"{failed}{place_in_caller(error)}: {_told(error)}{cure}") from error


def _told(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
