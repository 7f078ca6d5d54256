"""jaxport serve --models work/models"""

import argparse

from serve_grpc.flags import add_flags, settings_from

__all__ = ["add_flags", "run"]


def run(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    # After the flags are checked: JAX takes a second to import.
    from serve_grpc.server import serve

    return serve(settings)
