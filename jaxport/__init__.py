"""What a person types and imports: the `jaxport` command and the Python client."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxport.client import Client, ServerError

__all__ = ["Client", "ServerError"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'jaxport' has no attribute {name!r}")
    from jaxport import client

    return getattr(client, name)
