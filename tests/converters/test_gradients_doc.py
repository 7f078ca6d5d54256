"""docs/gradients.md, run as it stands: what has only the bundle trains as what has the source."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parents[2]
# As for whoever was only sent the bundle: no model library, and no source of the model.
ALONE = """
import sys
sys.path.insert(0, {root!r})
sys.modules.update(dict.fromkeys(("flax", "train_job", "model")))
exec(compile(open({script!r}).read(), {script!r}, "exec"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of the page by their names, and the bundle that the first of them writes."""
    folder = tmp_path_factory.mktemp("gradients")
    page = (ROOT / "docs" / "gradients.md").read_text()
    for name, script in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(script)
    subprocess.run([sys.executable, "model.py"], cwd=folder, env={"PYTHONPATH": str(ROOT)}, check=True)
    return folder


def alone(folder: Path, script: str) -> str:
    code = ALONE.format(root=str(ROOT), script=script)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def source(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(folder / "model.py")))


def test_training_from_the_bundle_is_training_on_the_function(folder: Path) -> None:
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", alone(folder, "finetune.py"))]
    assert len(losses) == 5 and losses[-1] < losses[0] / 2
    tuned, model = np.load(folder / "tuned.npz"), source(folder)
    digits = load_digits()
    images, labels = digits.data.astype("float32") / 16, digits.target.astype("int32")
    optimizer = optax.sgd(0.1, momentum=0.9)
    params, step = model.params, jax.jit(jax.grad(model.loss))
    state = optimizer.init(params)
    for at in range(50):
        rows = np.random.default_rng(at).integers(0, len(images), 64)
        updates, state = optimizer.update(step(params, images[rows], labels[rows]), state, params)
        params = optax.apply_updates(params, updates)
    for name, array in params.items():
        np.testing.assert_allclose(tuned[name], array, rtol=0, atol=1e-5)
        assert np.abs(tuned[name] - model.params[name]).max() > 1e-2  # it has learned something to compare


def test_saliency_is_the_gradient_of_the_function(folder: Path) -> None:
    alone(folder, "saliency.py")
    model = source(folder)
    image = load_digits().data[:1].astype("float32") / 16
    want = np.abs(jax.grad(lambda image: model.predict(model.params, image).max())(image))
    got = np.load(folder / "saliency.npy")
    np.testing.assert_allclose(got, want.reshape(8, 8), rtol=1e-4, atol=1e-6)
    assert got.max() > 0.01
