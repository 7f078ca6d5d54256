"""bundle -> Predict: a warm gRPC server for exported JAX programs.

    python -m serve_grpc --models ./work/models

Requests walk transport -> protocol -> batcher -> executor -> back. Knows jax and the bundle reader; never the
model's source, a training library or TensorFlow.
"""
