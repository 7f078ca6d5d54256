"""PyTriton: Triton's own gRPC front and dynamic batcher, the program in this process; raw contents.

PyTriton asks for numpy < 2 and jax for 2.2. This process, where the program runs, has the newer; Triton's Python backend,
a proxy that only moves bytes, reads arrays by numpy 1's layout and runs in the venv `beside`, which has that.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from program import Program, announce, arguments

# Its workspaces would be left in the home folder.
os.environ["PYTRITON_HOME"] = str(Path(tempfile.gettempdir()) / "peers-pytriton")

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.server import triton_server
from pytriton.triton import Triton, TritonConfig

folder, port, options = arguments(max_batch=64, wait_us=0, http_port=0, metrics_port=0)
program = Program(folder, options["max_batch"])


@batch
def infer(rows: np.ndarray) -> list[np.ndarray]:
    return [program.run(rows)]


triton_server.get_triton_python_backend_python_env = lambda: Path(sys.prefix) / "beside"
config = TritonConfig(
    http_address="127.0.0.1",
    grpc_address="127.0.0.1",
    http_port=options["http_port"],
    grpc_port=port,
    allow_metrics=False,
    log_verbose=0,
)
with Triton(config=config) as triton:
    triton.bind(
        model_name="bench",
        infer_func=infer,
        inputs=[Tensor(name="rows", dtype=program.dtype.type, shape=program.row)],
        outputs=[Tensor(name=program.output, dtype=program.out_dtype.type, shape=program.out_row)],
        config=ModelConfig(
            max_batch_size=options["max_batch"],
            batcher=DynamicBatcher(max_queue_delay_microseconds=options["wait_us"]),
        ),
        strict=False,
    )
    announce(port)
    triton.serve()
