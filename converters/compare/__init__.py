"""One model, every way to run it: the same weights, the same inputs, the same rounds.

    from converters.compare.side_by_side import compare
    found = compare("models/nano/1", Asked(batches=(1, 16)))

A way that cannot be had here is in the result all the same, with the reason. Nothing is imported from here: one module of
this folder runs in a process that has TensorFlow and no JAX.
"""
