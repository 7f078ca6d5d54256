"""jaxport export --fn: a function and its declaration from a module, its params from a checkpoint that others wrote."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as old
import pytest
from flax import nnx
from orbax.checkpoint import v1 as ocp

from converters import ExportSpec, from_function, open_bundle
from converters.checkpoint import fit, read_checkpoint
from converters.errors import BadSpec
from jaxport.cli import main
from tests.converters.conftest import iris_params, iris_rows
from train_job.models.transformer import Transformer, TransformerConfig

MODEL = """
    import jax, numpy as np
    from converters import ExportSpec, SignatureSpec, TensorSpec

    def fn(params, x):
        return jax.nn.relu(x @ params["layers"][0]["w"] + params["layers"][0]["b"])

    rows = {"x": np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)}
    declared = SignatureSpec(fn, {"x": TensorSpec("float32", "b, 4")}, ("y",), rows)

    def of_the_model_within():
        return ExportSpec({"predict": declared}, restore=lambda saved: saved["model"], usage={"task": "iris"})

    def takes_an_argument(size):
        return declared

    not_there = lambda: ExportSpec(declared, restore=lambda saved: saved["other"])
    a_number = 7
"""
COURSE = """
    import jax.numpy as jnp, numpy as np
    from flax import nnx
    from converters import ExportSpec, SequenceSpec, SignatureSpec, TensorSpec
    from train_job.models.transformer import Transformer, TransformerConfig

    def tiny():
        config = TransformerConfig(layers=1, d_model=16, heads=2, ffn=32, context=8)
        graph, params = nnx.split(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))), nnx.Param)
        tokens = np.random.default_rng(0).integers(0, 256, (4, 8)).astype(np.int32)
        signature = SignatureSpec(
            lambda params, tokens: nnx.merge(graph, params)(tokens),
            inputs={"tokens": TensorSpec("int32", "b, 8")}, outputs=("logits",), example={"tokens": tokens},
        )
        return ExportSpec(signature, params=params)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules beside the user, who stands in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    for name, text in (
        ("my_model", MODEL),
        ("course", COURSE),
        ("needs_more", "import nothing_of_that_name"),
        ("no_python", "def ("),
        ("breaks", "x = 1\nraise RuntimeError('no device')"),
    ):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def saved(path: Path, tree: Any, by: str = "v1") -> Path:
    if by == "v1":
        ocp.save(str(path), tree)
    elif by == "PyTreeCheckpointer":
        with old.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(path, tree)
    else:
        with old.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, tree)
    return path


def export(fn: str, params: Path | str, *flags: str) -> int:
    return main(["export", "--fn", fn, "--params", str(params), "--name", "m", "--platforms", "cpu", *flags])


@pytest.mark.parametrize("by", ["v1", "StandardCheckpointer", "PyTreeCheckpointer"])
def test_a_checkpoint_is_read_without_knowing_its_tree(by: str, tmp_path: Path) -> None:
    params = iris_params()
    tree = read_checkpoint(saved(tmp_path / "params", params, by))
    assert jax.tree.structure(tree) == jax.tree.structure(params)
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(tree))
    jax.tree.map(np.testing.assert_array_equal, tree, params)


def test_a_function_and_its_checkpoint_are_a_bundle(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(here / "params", iris_params())
    assert export("my_model:declared", "params") == 0
    assert "predict: x float32[b, 4] -> y float32[b, 64]" in capsys.readouterr().out
    bundle = open_bundle(here / "work" / "models" / "m" / "1")
    want = jax.nn.relu(iris_rows(3)["x"] @ iris_params()["layers"][0]["w"])
    got = bundle.exported().call(bundle.load_weights(), iris_rows(3))["y"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert bundle.manifest.provenance["function"] == "my_model:declared"
    assert str(here) not in (bundle.path / "manifest.json").read_text()
    saved(here / "more", {"model": iris_params(), "step": np.array(3, np.int32)})
    assert export("my_model:of_the_model_within", "more", "--version", "7") == 0
    assert open_bundle(here / "work" / "models" / "m" / "7").manifest.usage == {"task": "iris"}


@pytest.mark.parametrize("wrong", [{"predict": "x"}, {}, "x"])
def test_signatures_that_are_none_are_named(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_function, "load_spec", lambda _: ExportSpec(wrong))
    settings = from_function.FunctionExport(Path(), "m:f", Path(), "m", fixed_batches=(1,))
    with pytest.raises(BadSpec, match="signatures: "):
        from_function.export_function(settings)


def test_a_bare_checkpoint_of_a_transformer_that_the_old_checkpointer_wrote(here: Path) -> None:
    """Of the params alone, without an optimizer; the numbers of its layers have become strings."""
    config = TransformerConfig(layers=1, d_model=16, heads=2, ffn=32, context=8)
    model = Transformer(config, rngs=nnx.Rngs(5))
    saved(here / "params", nnx.state(model, nnx.Param), "StandardCheckpointer")
    assert export("course:tiny", "params") == 0
    bundle = open_bundle(here / "work" / "models" / "m" / "1")
    tokens = np.arange(16, dtype=np.int32).reshape(2, 8)
    got = bundle.exported().call(bundle.load_weights(), {"tokens": tokens})["logits"]
    np.testing.assert_allclose(got, model(tokens), rtol=1e-4, atol=1e-4)
    assert any(name.startswith("blocks.0.") for name in bundle.load_weights())


def lacks(tree: Any) -> None:
    del tree["b"]


def has_more(tree: Any) -> None:
    tree["mu"] = np.zeros(2)


def is_transposed(tree: Any) -> None:
    tree["a"]["0"] = tree["a"]["0"].T


def is_wider(tree: Any) -> None:
    tree["b"] = tree["b"].astype(np.float64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lacks, r"--params p: lacks 'b', which the function's params have$"),
        (has_more, "--params p: holds 'mu', which the function's params have not; .* with restore="),
        (is_transposed, r"--params p: 'a\.0' is float32\[3, 2\], the function's params have float32\[2, 3\]"),
        (is_wider, r"'b' is float64\[3\], the function's params have float32\[3\]"),
    ],
)
def test_a_leaf_that_does_not_fit_is_named(change: Callable[[Any], None], said: str) -> None:
    expected = {"a": {0: jax.ShapeDtypeStruct((2, 3), np.float32)}, "b": np.zeros(3, np.float32)}
    tree = {"a": {"0": np.arange(6, dtype=np.float32).reshape(2, 3)}, "b": np.ones(3, np.float32)}
    fitted = fit(tree, expected, "--params p")
    assert fitted["a"][0].tolist() == [[0, 1, 2], [3, 4, 5]] and fitted["b"].tolist() == [1, 1, 1]
    change(tree)
    with pytest.raises(BadSpec, match=said):
        fit(tree, expected, "--params p")


@pytest.mark.parametrize(
    ("fn", "params", "said"),
    [
        ("my_model", "params", "--fn 'my_model': package.module:name is needed"),
        ("absent:f", "params", "there is no module 'absent'"),
        ("my_model.sub:f", "params", "there is no module 'my_model.sub'"),
        ("needs_more:f", "params", "module 'needs_more' needs 'nothing_of_that_name', which is not installed"),
        ("no_python:f", "params", "module 'no_python' is no Python: "),
        ("breaks:f", "params", "importing 'breaks' failed at breaks.py:2: RuntimeError: no device"),
        ("my_model:absent", "params", "module 'my_model' has no 'absent'; an ExportSpec or"),
        ("my_model:a_number", "params", "--fn my_model:a_number: is a int; an ExportSpec or"),
        ("my_model:ExportSpec", "params", "is a type; an ExportSpec or"),
        ("my_model:fn", "params", "calling it without arguments failed: TypeError: "),
        ("my_model:declared", "absent", "--params absent: no such folder"),
        ("my_model:declared", "params/array_metadatas", "no such folder"),
        ("my_model:declared", ".", "--params .: is no Orbax checkpoint; name one of its steps: 12"),
        ("my_model:declared", "damaged", "--params damaged: "),
        ("my_model:not_there", "params", "the spec's restore failed on it at my_model.py:"),
    ],
)  # fmt: skip
def test_every_wrong_form_is_one_line_and_2(
    fn: str, params: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(here / "params", {"w": np.ones(2, np.float32)})
    (here / "12").mkdir()
    (here / "damaged").mkdir()
    (here / "damaged" / "_METADATA").write_text("{")
    capsys.readouterr()
    assert export(fn, params) == 2
    told = capsys.readouterr().err.strip()
    assert said in told and "\n" not in told
    assert not (here / "work").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fn", "a:b", "--params", "p", "--run", "r"], "not allowed with argument"),
        ([], "one of the arguments --run --fn is required"),
        (["--fn", "a:b", "--name", "m"], "--params DIR, the checkpoint of its params, is needed with it"),
        (["--fn", "a:b", "--params", "p"], "--name MODEL, the model's name, is needed with it"),
        (["--fn", "a:b", "--params", "p", "--name", "m", "--wait"], "--wait: belongs to --run"),
        (["--fn", "a:b", "--params", "p", "--name", "m", "--step", "3"], "--step: belongs to --run"),
        (["--run", "r", "--params", "p"], "--params: belongs to --fn"),
        (["--fn", "my_model:declared", "--params", "p", "--name", ".m"], "--name '.m': letters"),
    ],
)
def test_flags_that_do_not_go_together(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["export", *arguments])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2 and said in capsys.readouterr().err
