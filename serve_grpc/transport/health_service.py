"""grpc.health.v1 on grpc.aio."""

import asyncio
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2


class HealthService(health.aio.HealthServicer):  # pyright: ignore[reportAttributeAccessIssue]
    """grpcio's; a service that was removed is NOT_FOUND like one that never was, and a watch can be ended."""

    def __init__(self) -> None:
        super().__init__()
        self._ending = asyncio.Event()

    def end_watches(self) -> None:
        """Ends every Watch: it has no end of its own, and a server that stops waits for it."""
        self._ending.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: aio.ServicerContext) -> Any:
        response = await super().Check(request, context)
        if response.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"model {request.service!r} was removed")
        return response

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: aio.ServicerContext) -> None:
        watching = asyncio.ensure_future(super().Watch(request, context))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait([watching, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watching, ending):
                task.cancel()
            await asyncio.wait([watching, ending])
