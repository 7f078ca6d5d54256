"""Plain grpcio, aio: the program called in the handler, raw bytes as the messages."""

import asyncio

import grpc
from program import Program, arguments

folder, port, _ = arguments()
program = Program(folder, max_batch=1)


async def predict(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
    return program.run_bytes([request])[0]


async def main() -> None:
    server = grpc.aio.server()
    # No serializers: the messages stay bytes.
    handlers = {"Predict": grpc.unary_unary_rpc_method_handler(predict)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Raw", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("READY", flush=True)
    await server.wait_for_termination()


asyncio.run(main())
