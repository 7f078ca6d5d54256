"""A model that a person brings: what is wrong with it is one line, before anything is written."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxport.stopping import Unwound
from train_job.data.arrays import ArrayData
from train_job.errors import CheckFailed, OwnCodeFailed, UsageError
from train_job.guarded import GuardedDataset, own_code
from train_job.job import train
from train_job.presets import get_preset
from train_job.rows import OF_THE_LOOP, read_metrics
from train_job.runs import read_run
from train_job.settings import TrainSettings
from train_job.weights import skeleton

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "convnet" / "convnet.py"


def started(name: str, root: Path) -> int:
    return train(TrainSettings.from_flags(model=f"wrong_models:{name}", root=root))


WRONG = {
    "needs_an_argument": "needs size: it is called without arguments; give each a default",
    "model_is_a_dict": "model is a dict, needs a dataclass",
    "model_is_a_class": r"model is the class Config, needs an instance: Config\(\.\.\.\)",
    "model_without_build": r"model DataInfo has no method build\(rngs\)",
    "model_with_a_function": "its field activation is a .*, needs a number, a text, or lists",
    "model_with_a_nan": r"its field scales is \(1\.0, nan\), needs finite numbers",
    "module_with_a_stream": r"random state 'rnn\.rngs\.count'; build that layer without .* nnx\.RNN with rngs=False",
    "build_gives_a_function": r"build of Config gave a \w+, needs a flax.nnx.Module",
    "module_with_a_bare_array": "holds 'scale' as a bare array; make it an nnx.Param",
    "module_without_weights": "has no nnx.Param to train",
    "optimizer_is_a_lambda": "optimizer is a lambda or local function, needs a function of a module that takes",
    "optimizer_gives_a_number": "optimizer wrong_models:gives_a_number gave a float, needs an optax.Grad",
    "optimizer_makes_other_shapes": r"optimizer wrong_models:sums makes an update float32\[\] of 'bias', needs",
    "optimizer_is_a_transformation": "optimizer is a GradientTransformationExtraArgs, needs a function of a module",
    "task_is_a_class": r"task is the class Fit, needs an instance: Fit\(\)",
    "task_without_loss": "task Half has no method loss",
    "task_of_its_own": "task Mine has no method predict; a subclass of train_job.presets.Task inherits one",
    "batch_size_is_a_text": "hyper.batch_size: found '32', needs a whole number of at least 1",
    "learning_rate_is_negative": "hyper.learning_rate: found -1.0, needs a number above 0",
    "name_is_a_path": "name is 'my/model', needs up to 128 letters, digits",
    "load_gives_arrays": "load of Fit gave a dict without info, needs a train_job.presets.Dataset",
    "loss_of_every_row": r"loss of Fit gave float32\[4\], needs one float number: the mean over the rows",
    "loss_alone": r"loss of Fit gave float32\[\], needs two things: the loss, and a dict",
    "loss_with_a_metric_of_every_row": r"loss of Fit gave float32\[4\] as metric 'error', needs one",
    "report_gives_nothing": "report of Fit gave None, needs a dict of numbers by name",
    "report_gives_a_text": "report of Fit gave 'val_error' as a str, needs one real number",
    "report_gives_rows": r"report of Fit gave 'val_error' as float64\[2, 3\], needs one real number",
    "report_has_a_step": "report of Fit gave a metric named 'step', which every row has already; rename it",
    "report_has_the_throughput": "report of Fit gave a metric named 'rows_per_s', which every row has",
    "unknown_headline": "headline is 'val_accuracy', needs one of what is reported: train_loss, val_loss",
    "batch_of_other_rows": r"batch of Ramp gave 'x' as float32\[3, 4\] at step 0, needs 4 rows: batch_size",
    "batch_of_texts": "batch of Ramp gave 'x' of dtype <U1, needs numbers",
    "batch_by_chance": r"two calls of batch\(0, 0, 4\) give 'x' differently, needs the same",
    "batch_without_memory": "batch of Ramp has not the memory for 4 rows: Unable .*; needs a smaller --set batch_size",
    "evaluation_of_two_sizes": r"evaluation\('train'\) gives 'x' as float32\[1, 8, 4\], needs float32\[1, 4, 4\] as of",
    "evaluation_without_batches": r"evaluation of Ramp gave x float32\[16, 4\], y .* needs \[batches, rows, \.\.\.\]",
    "example_of_another_shape": r"example_inputs\(3, seed\) has 'x' as float32\[3, 4\], needs float32\[b, 5\]",
    "two_inputs_and_no_predict": "its signature has 2 inputs and 1 outputs; give it a method predict",
    "predict_forgets_an_output": "predict gives z, needs the outputs of the signature: y",
    "prediction_is_a_mean": r"predict gives 'y' as float32\[\] for 3 rows, needs the rows first",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=WRONG[name]) as caught:
        started(name, tmp_path)
    assert str(caught.value).startswith(f"--model wrong_models:{name}") and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert not list(tmp_path.iterdir())


RAISES = {
    "build_raises": ("build of Config raised TypeError", "nnx.Linear(4"),
    "factory_exits": ("raised SystemExit: 0", "sys.exit(0)"),
    "loss_exits": ("loss of Fit raised SystemExit: no more", "sys.exit("),
    "loss_raises": ("loss of Fit raised KeyError: 'pixels'", 'batch["pixels"]'),
    "signature_that_the_module_does_not_take": (
        "predict on example_inputs of the signature x float32[b, 5] raised TypeError: dot_general requires",
        "dot_general requires",
    ),
}


@pytest.mark.parametrize("name", RAISES)
def test_an_exception_of_their_own_code_is_shown_below_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(OwnCodeFailed) as caught:
        started(name, tmp_path)
    line, traceback, *frames = str(caught.value).splitlines()
    told, shown = RAISES[name]
    assert line.startswith(f"--model wrong_models:{name}") and told in line
    assert traceback == "Traceback (most recent call last):"
    assert "train_job/guarded" not in frames[0], "theirs comes first"
    assert any(shown in frame for frame in frames)
    assert not list(tmp_path.iterdir())


def test_a_module_that_cannot_be_imported_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_model.py").write_text("value = 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OwnCodeFailed, match="import of broken_model raised ZeroDivisionError") as caught:
        get_preset("broken_model:preset")
    assert str(caught.value).splitlines()[2].endswith('broken_model.py", line 1, in <module>')


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loss_is_not_a_number", r"loss is nan at step 1 .*before any update: look at the loss and"),
        (
            "evaluation_is_not_a_number",
            r"val_loss is nan at step 2, .*: look at the data that it is evaluated on",
        ),
    ],
)
def test_what_is_no_number_says_where_to_look(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=message) as caught:
        started(name, tmp_path)
    assert caught.value.exit_code == 3


def test_a_signal_in_their_code_stays_what_it_is() -> None:
    for leaving in (KeyboardInterrupt(), Unwound(143)):
        with pytest.raises(type(leaving)), own_code("theirs"):
            raise leaving


def test_every_kind_of_one_number_in_a_report_is_a_float() -> None:
    found = get_preset("wrong_models:report_of_other_kinds").task.report({"val_loss": 1.5})
    assert found == {"val_loss": 1.5, "f": 0.5, "g": 0.5, "a": 2.0, "j": 1.0, "b": 1.0, "i": 3.0}
    assert {type(value) for value in found.values()} == {float}


def test_a_recurrent_layer_as_the_page_says_has_no_state_but_its_weights() -> None:
    preset = get_preset("wrong_models:recurrent")
    structure = skeleton(preset.model)
    assert structure.trainable == structure.slots.keys()
    found = jax.eval_shape(preset.predict_fn(), structure.abstract, preset.example_inputs(3, 0))
    assert found["y"].shape == (3, 1)


def test_a_model_that_is_right_trains_and_its_fields_are_in_the_fingerprint(tmp_path: Path) -> None:
    """With data in double precision, which JAX takes as float32."""
    assert started("right", tmp_path) == 0
    assert read_run(tmp_path / "runs" / "right").fingerprint["model.width"] == 4
    for row in read_metrics(tmp_path / "runs" / "right"):
        assert row.keys() - OF_THE_LOOP == {"train_loss", "val_loss", "rows_per_s"}, (
            "a metric may have no other name"
        )


def test_a_batch_of_another_shape_in_the_middle_of_a_run_is_named() -> None:
    class Shrinking(ArrayData):
        def batch(self, seed: int, step: int, rows: int, own: slice = slice(None)) -> dict[str, np.ndarray]:
            return {"x": np.ones((rows if step < 9 else 1, 2 + (step == 5)), np.float32)}

    data = Shrinking.cut("ones", {"x": np.ones((8, 2))}, validation=2)
    guarded = GuardedDataset(data, "%s of Shrinking")  # type: ignore[arg-type]
    assert len(guarded.batch(0, 4, 6)["x"]) == 6
    with pytest.raises(
        UsageError, match=r"gave 'x' as rows of float32\[3\] at step 5, needs rows of float32\[2\]"
    ):
        guarded.batch(0, 5, 6)
    with pytest.raises(UsageError, match=r"float32\[1, 2\] at step 9, needs 6 rows"):
        guarded.batch(0, 9, 6)


def test_arrays_in_memory_are_cut_drawn_and_named_by_their_bytes() -> None:
    rows = np.arange(2000.0)
    data = ArrayData.cut("numbers", {"x": rows}, validation=1100)
    assert data.batch(1, 2, 4)["x"].max() < 900
    np.testing.assert_array_equal(data.batch(1, 2, 4, slice(2, 4))["x"], data.batch(1, 2, 4)["x"][2:])
    assert data.evaluation("train")["x"].shape == data.evaluation("validation")["x"].shape == (2, 512)
    assert data.evaluation("validation")["x"].min() == 900
    other = ArrayData.cut("numbers", {"x": rows + (rows == 7)}, validation=1100)
    assert data.info.sha256 != other.info.sha256
    with pytest.raises(UsageError, match="needs the same in all, and more"):
        ArrayData.cut("numbers", {"x": rows, "y": rows[1:]}, validation=1)


def test_the_example_takes_no_data_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "sklearn.datasets", SimpleNamespace(load_digits=None)
    )  # seconds to import
    digits = runpy.run_path(str(EXAMPLE))["digits"]
    with pytest.raises(UsageError, match=r"^--data: found 'typo'; .*: leave --data out$"):
        digits().task.load("typo")


def test_the_page_shows_the_example_as_it_is() -> None:
    assert f"```python\n{EXAMPLE.read_text()}```\n" in (ROOT / "docs" / "own-model.md").read_text()
