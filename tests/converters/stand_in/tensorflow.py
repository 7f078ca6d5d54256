"""What the process of a SavedModel needs of TensorFlow, for `x`: float32 [b, 4] -> float32 [b, 3].

The folder that is loaded holds its weights, and in `how` what it is to do: answer, lie, or end in the middle.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np

__version__ = "0.0-stand-in"
constant = np.asarray


class Tensor:
    def __init__(self, value):
        self._value = value

    def numpy(self):
        return self._value


def _load(folder):
    if "jax" in __import__("sys").modules:
        raise RuntimeError("JAX is in the process of TensorFlow")
    print("a library that prints")
    how = (Path(folder) / "how").read_text()
    weights = np.load(Path(folder) / "weights.npz")

    def predict(x):
        if how == "end":
            os._exit(7)
        for i in range(3):
            x = x @ weights[f"w{i}"] + weights[f"b{i}"]
            x = np.maximum(x, 0) if i < 2 else x
        return {"logits": Tensor(x + (how == "lie"))}

    return SimpleNamespace(signatures={"other" if how == "other" else "serving_default": predict})


saved_model = SimpleNamespace(load=_load)
