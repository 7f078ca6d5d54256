"""python -m serve_grpc --models DIR [flags]: the server without the rest of the command line."""

import argparse
import sys

from jaxport.stopping import leaving_on_signals
from serve_grpc.errors import ServeError
from serve_grpc.flags import add_flags, settings_from


def main() -> int:
    """Exit code of the server; every error is one line on stderr."""
    with leaving_on_signals():
        return _serve()


def _serve() -> int:
    parser = argparse.ArgumentParser(prog="python -m serve_grpc", description="Serve bundles over gRPC.")
    add_flags(parser)
    flags = parser.parse_args()
    try:
        settings = settings_from(flags)
        # Imported late: a wrong flag is answered before JAX has loaded.
        from serve_grpc.server import serve

        return serve(settings)
    except ServeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
