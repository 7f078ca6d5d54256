"""usage: python -I ask_tensorflow.py SAVEDMODEL SIGNATURE [INPUTS.npz OUTPUTS.npz]...

Knows TensorFlow and numpy, as a program on a machine without JAX, which it could not import.
"""

import sys

BLOCKED = ("jax", "jaxlib", "converters", "jaxport")
sys.modules.update(dict.fromkeys(BLOCKED))  # pyright: ignore[reportArgumentType, reportCallIssue]

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

model = tf.saved_model.load(sys.argv[1])
function = model.signatures[sys.argv[2]]
for asked, answered in zip(sys.argv[3::2], sys.argv[4::2], strict=True):
    with np.load(asked) as inputs:
        answers = function(**{name: tf.constant(inputs[name]) for name in inputs.files})
    np.savez(answered, **{name: value.numpy() for name, value in answers.items()})
assert not any(sys.modules[name] for name in BLOCKED)
