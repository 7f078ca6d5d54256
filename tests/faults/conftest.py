"""The bundles and transports that the tests of the server use."""

from tests.serve_grpc.conftest import cache, jax_cache, models, one_model, transport, versions

__all__ = ["cache", "jax_cache", "models", "one_model", "transport", "versions"]
