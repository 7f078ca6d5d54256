"""FastAPI under uvicorn (uvloop, httptools), one worker; raw bytes in and out.

max_batch=1 calls the program in the handler. More gathers what has arrived in this turn of the event loop.
"""

import asyncio

import uvicorn
from fastapi import FastAPI, Request, Response
from program import Program, announce, arguments

folder, port, settings = arguments(max_batch=1)
program = Program(folder, settings["max_batch"])
app = FastAPI()


class Gatherer:
    """Micro-batches: a run takes whatever waits, and what comes meanwhile waits for the next."""

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, asyncio.Future[bytes]]] = []

    def ask(self, request: bytes) -> "asyncio.Future[bytes]":
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        if not self.waiting:
            loop.call_soon(self.flush)
        self.waiting.append((request, answer))
        return answer

    def flush(self) -> None:
        size = program.buckets[-1]
        batch, self.waiting = self.waiting[:size], self.waiting[size:]
        if self.waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        for (_, answer), result in zip(batch, program.run_bytes([r for r, _ in batch]), strict=True):
            if not answer.cancelled():
                answer.set_result(result)


gatherer = Gatherer()


@app.post("/predict")
async def predict(request: Request) -> Response:
    body = await request.body()
    if settings["max_batch"] > 1:
        return Response(await gatherer.ask(body), media_type="application/octet-stream")
    return Response(program.run_bytes([body])[0], media_type="application/octet-stream")


announce(port)
uvicorn.run(
    app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False
)
