"""checkpoint -> bundle. Names load when they are first used, so that a reader pays for no exporter."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from converters.bundle import Bundle, open_bundle
    from converters.export import ExportSpec, SequenceSpec, SignatureSpec, TensorSpec, export_bundle
    from converters.loaded import LoadedBundle, load_bundle

__all__ = [
    "Bundle",
    "ExportSpec",
    "LoadedBundle",
    "SequenceSpec",
    "SignatureSpec",
    "TensorSpec",
    "export_bundle",
    "load_bundle",
    "open_bundle",
]

_HOME = {
    "Bundle": "converters.bundle",
    "open_bundle": "converters.bundle",
    "ExportSpec": "converters.export",
    "LoadedBundle": "converters.loaded",
    "load_bundle": "converters.loaded",
    "SequenceSpec": "converters.export",
    "SignatureSpec": "converters.export",
    "TensorSpec": "converters.export",
    "export_bundle": "converters.export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'converters' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
