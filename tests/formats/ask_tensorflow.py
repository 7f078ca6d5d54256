"""usage: python -I ask_tensorflow.py SAVEDMODEL SIGNATURE INPUTS.npz OUTPUTS.npz

Knows TensorFlow and numpy, as a program that never heard of JAX.
"""

import sys

import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
function = model.signatures[sys.argv[2]]
with np.load(sys.argv[3]) as inputs:
    answers = function(**{name: tf.constant(inputs[name]) for name in inputs.files})
np.savez(sys.argv[4], **{name: value.numpy() for name, value in answers.items()})
assert "jax" not in sys.modules
