"""Plain grpcio, sync: a thread pool, the program called in the handler, raw bytes as the messages."""

from concurrent.futures import ThreadPoolExecutor

import grpc
from program import Program, arguments

folder, port, settings = arguments(threads=16)
program = Program(folder, max_batch=1)


def predict(request: bytes, _: grpc.ServicerContext) -> bytes:
    return program.run_bytes([request])[0]


server = grpc.server(ThreadPoolExecutor(settings["threads"]))
# No serializers: the messages stay bytes.
handlers = {"Predict": grpc.unary_unary_rpc_method_handler(predict)}
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Raw", handlers),))
server.add_insecure_port(f"127.0.0.1:{port}")
server.start()
print("READY", flush=True)
server.wait_for_termination()
