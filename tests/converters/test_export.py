"""What an export refuses, proves and repeats."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from converters import TensorSpec, export_bundle, open_bundle
from converters.bundle import list_versions
from converters.errors import BadSpec, ConvertError, ExportRefused, PlatformMissing
from converters.program import constants, operation_counts
from tests.converters.conftest import IRIS, export_iris, iris_params, iris_rows

BIG = np.random.default_rng(0).normal(size=(4, 8192)).astype(np.float32)


def branches_on_the_batch(params: Any, x: jax.Array) -> jax.Array:
    return x * (2.0 if x.shape[0] == 1 else 3.0)


def mean_over_the_batch(params: Any, x: jax.Array) -> jax.Array:
    return x - x.mean(axis=0)


def sorts_the_rows(params: Any, x: jax.Array) -> jax.Array:
    return jnp.sort(x, axis=0)


def loses_the_batch(params: Any, x: jax.Array) -> jax.Array:
    return x.sum()


def moves_the_batch(params: Any, x: jax.Array) -> jax.Array:
    return x.T


def sums_up_to_the_row(params: Any, x: jax.Array) -> jax.Array:
    return jnp.cumsum(x, axis=0)


def counts_the_rows(params: Any, x: jax.Array) -> jax.Array:
    return x + jnp.arange(x.shape[0])[:, None]


def looks_at_the_row_before(params: Any, x: jax.Array) -> jax.Array:
    return jnp.concatenate([x[:1], x[:-1]])


def takes_the_first_row_off(params: Any, x: jax.Array) -> jax.Array:
    return x - x[0:1]


def draws_for_the_whole_batch(params: Any, x: jax.Array) -> jax.Array:
    return x + jax.random.normal(jax.random.key(0), (x.shape[0], 4))


def divides_by_the_largest(params: Any, x: jax.Array) -> jax.Array:
    return x / x.max()


def gives_keys(params: Any, x: jax.Array) -> jax.Array:
    return jax.random.split(jax.random.key(0), x.shape[0])


def calls_back(params: Any, x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def prints(params: Any, x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x)
    return x


def captures_an_array(params: Any, x: jax.Array) -> jax.Array:
    return x @ BIG


def needs_a_number(params: Any, x: jax.Array) -> jax.Array:
    return x[: int(x.shape[0]) // 2 + 1]


def compares_the_batch(params: Any, x: jax.Array) -> jax.Array:
    return x if x.shape[0] > 8 else x + 1


def gives_half_bytes(params: Any, x: jax.Array) -> jax.Array:
    return x.astype("int4")


def is_broken(params: Any, x: jax.Array) -> jax.Array:
    raise KeyError("no such layer")


@pytest.mark.parametrize(
    ("fn", "code", "said"),
    [
        (branches_on_the_batch, "JP106", "differs from the function at batch 1"),
        (mean_over_the_batch, "JP107", "rows of a batch depend on each other"),
        (sorts_the_rows, "JP107", "rows of a batch depend on each other"),
        (sums_up_to_the_row, "JP108", "rows of a batch depend on each other or on their place: row 1 alone"),
        (counts_the_rows, "JP108", "rows of a batch depend on each other or on their place: row 1 alone"),
        (looks_at_the_row_before, "JP107", "rows of a batch depend on each other or on their place"),
        (takes_the_first_row_off, "JP107", "rows of a batch depend on each other or on their place"),
        (draws_for_the_whole_batch, "JP113", r"draws random numbers \(random_bits\) from a key without an input"),
        (divides_by_the_largest, "JP107", "rows of a batch depend on each other or on their place"),
        (gives_keys, "JP111", "output 'logits' is of key<fry>"),
        (gives_half_bytes, "JP111", "'logits': dtype int4 has less than a byte"),
        (loses_the_batch, "JP109", r"output 'logits' has shape \[\]"),
        (moves_the_batch, "JP109", r"output 'logits' has shape \[4, b\]"),
        (calls_back, "JP101", "uses pure_callback"),
        (prints, "JP101", "jax.debug.print"),
        (captures_an_array, "JP103", r"holds a constant of 131072 bytes \(tensor<4x8192xf32>\)"),
        (compares_the_batch, "JP104", r"cannot be exported at test_export\.py:\d+: InconclusiveDimensionOperation"),
        (needs_a_number, "JP105", r"cannot be exported at test_export\.py:\d+: InconclusiveDimensionOperation"),
        (is_broken, "JP120", r"cannot be exported at test_export\.py:\d+: KeyError: 'no such layer'"),
    ],
)  # fmt: skip
def test_a_function_that_would_fail_later_is_refused_and_nothing_is_left(
    fn, code: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportRefused, match=f"^{code}: .*{said}") as refusal:
        export_iris(tmp_path / "m" / "1", fn)
    assert refusal.value.code == code and refusal.value.exit_code == 3
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": {"x": TensorSpec("float32", "4, b")}}, "the batch symbol must come first"),
        ({"inputs": {"x": TensorSpec("float32", "b, 2*b")}}, "the batch 'b' may be its first dimension only"),
        ({"inputs": {"x": TensorSpec("float32", "b, 4 4")}}, r"shape 'b, 4 4' \(syntax error"),
        ({"inputs": {"x": TensorSpec("float32", "b, 0")}}, "dimension 0 in 'b, 0'; at least 1"),
        (
            {"inputs": {"x": TensorSpec("float64", "b, 4")}},
            "dtype 'float64' is not kept by JAX, it becomes float32",
        ),
        ({"inputs": {"x": TensorSpec("float33", "b, 4")}}, "dtype 'float33' is unknown"),
        ({"inputs": {}}, "none are given"),
        ({"example": {"y": iris_rows(2)["x"]}}, r"has \['y'\], the inputs are \['x'\]"),
        (
            {"example": {"x": np.zeros((2, 5), np.float32)}},
            r"is float32\[2, 5\], the input is x float32\[b, 4\]",
        ),
        ({"example": {"x": np.zeros((0, 4), np.float32)}}, r"is float32\[0, 4\]"),
        ({"outputs": ("a", "b")}, "the function gives 1, named are"),
        ({"outputs": ()}, "at least one name"),
        ({"outputs": "logits"}, r"'logits' is one text; names are needed, as \('logits',\)"),
        ({"outputs": ("a/../b",)}, "'a/../b' is no name"),
        ({"fn": lambda params, x: {"logits": {"a": x}}}, "'logits' is a dict; an array is needed"),
        ({"fn": lambda params, x: [[x]]}, "'logits' is a list; an array is needed"),
        ({"platforms": ("cpu", "gpu")}, "some of cpu, cuda, rocm, tpu"),
        ({"params": {"w": "text"}}, "'w' is a str; an array is needed"),
        ({"params": {"w": 2.0}}, "'w' is the Python number 2.0; make it an array"),
        ({"params": {"a": {"b": np.ones(1)}, "a.b": np.ones(1)}}, "two leaves are called 'a.b'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=said):
        export_iris(tmp_path / "m" / "1", **changes)
    assert list(tmp_path.rglob("*")) == []


def test_a_program_that_cannot_be_proven_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlatformMissing, match="this machine is cpu: add cpu"):
        export_iris(tmp_path / "m" / "1", platforms=("cuda",))


@pytest.mark.parametrize("name", ["0", "-1", "latest", "1.5", "01", str(2**63), "9" * 30])
def test_a_version_is_a_positive_integer_or_next(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=r"a positive integer below 2\*\*63 or 'next'"):
        export_iris(tmp_path / "m" / name)


def test_kinds_of_tensors_go_the_whole_way(tmp_path: Path) -> None:
    """bfloat16, booleans, integers, several inputs and outputs, params of every shape, a row of no dimension."""

    def fn(params: Any, ids: jax.Array, keep: jax.Array, scale: jax.Array) -> dict[str, jax.Array]:
        taken = params["table"][ids] * params["gain"]
        return {
            "sum": jnp.where(keep[:, None], taken.sum(1), 0) * scale[:, None],
            "best": jnp.argmax(taken.sum(1), axis=-1),
            "kept": keep,
        }

    generator = np.random.default_rng(0)
    params = {
        "table": generator.normal(size=(10, 6)).astype(ml_dtypes.bfloat16),
        "gain": np.ones((), ml_dtypes.bfloat16) * 2,
        "none": np.zeros((0, 3), np.float32),
    }
    path = export_bundle(
        tmp_path / "kinds" / "next",
        fn,
        params,
        inputs={
            "ids": TensorSpec("int32", "n, 5"),
            "keep": TensorSpec("bool", "n"),
            "scale": TensorSpec("bfloat16", "n"),
        },
        outputs=("sum", "best", "kept"),
        example={
            "ids": generator.integers(0, 10, (4, 5)).astype(np.int32),
            "keep": np.array([True, False, True, True]),
            "scale": np.array([1, 2, 3, 4], ml_dtypes.bfloat16),
        },
    )
    bundle = open_bundle(path)
    signature = bundle.signature()
    assert [str(t) for t in signature.outputs] == ["sum bfloat16[n, 6]", "best int32[n]", "kept bool[n]"]
    weights = bundle.load_weights()
    assert weights["none"].shape == (0, 3) and weights["gain"].shape == ()
    for golden in bundle.goldens():
        got = {name: np.asarray(v) for name, v in bundle.exported().call(weights, golden.inputs).items()}
        bundle.check_golden("predict", golden, got, "cpu")


def test_integers_that_depend_on_other_rows_are_refused(tmp_path: Path) -> None:
    """No NaN can be put beside them: each row alone shows it."""
    with pytest.raises(ExportRefused, match="depend on each other"):
        export_iris(
            tmp_path / "m" / "1",
            lambda params, x: x / x.max(),
            inputs={"x": TensorSpec("int32", "b, 4")},
            example={"x": np.arange(32, dtype=np.int32).reshape(8, 4)},
        )


def test_complex_numbers_go_the_whole_way(tmp_path: Path) -> None:
    path = export_iris(tmp_path / "m" / "1", lambda params, x: (x @ params["layers"][0]["w"]) * 1j)
    assert open_bundle(path).signature().outputs[0].dtype == "complex64"


def test_a_program_holds_no_weights_and_is_lowered_for_both_platforms(iris_bundle: Path) -> None:
    bundle = open_bundle(iris_bundle)
    assert bundle.exported().platforms == ("cpu", "cuda")
    assert constants(bundle.exported()) == []
    assert bundle.manifest.files["programs/predict.jaxexport"].bytes < 8 << 10


def test_solvers_go_the_whole_way(tmp_path: Path) -> None:
    """Their calls have attributes of Shardy in the program."""

    def solve(params: Any, x: jax.Array) -> jax.Array:
        factor = jnp.linalg.cholesky(params["w"] @ params["w"].T + 4 * jnp.eye(4))
        return jax.scipy.linalg.cho_solve((factor, True), x.T).T

    w = np.random.default_rng(3).normal(size=(4, 4)).astype(np.float32)
    bundle = open_bundle(export_iris(tmp_path / "m" / "1", solve, params={"w": w}))
    assert b"#sdy" in bundle.exported().mlir_module().encode()
    assert operation_counts(bundle.exported())["stablehlo.custom_call"] > 0
    (golden, *_) = bundle.goldens()
    want = np.linalg.solve(w @ w.T + 4 * np.eye(4), golden.inputs["x"].T).T
    np.testing.assert_allclose(golden.outputs["logits"], want, atol=1e-5)


def test_new_weights_change_nothing_that_a_server_compiles(iris_bundle: Path, tmp_path: Path) -> None:
    other = open_bundle(export_iris(tmp_path / "iris" / "2", params=iris_params(seed=5)))
    assert other.swap_key == open_bundle(iris_bundle).swap_key
    different = export_iris(tmp_path / "iris" / "3", fn=lambda params, x: x * params["layers"][0]["b"][:4])
    assert open_bundle(different).swap_key != other.swap_key


def test_two_folders_and_other_line_numbers_give_the_same_program(tmp_path: Path) -> None:
    """Equal programs have equal bytes, without a path inside."""
    source = textwrap.dedent("""
        import sys, jax, numpy as np
        from converters import TensorSpec, export_bundle
        from model import fn
        params = {"w": np.ones((4, 3), np.float32)}
        export_bundle(sys.argv[1], fn, params, inputs={"x": TensorSpec("float32", "b, 4")}, outputs=("y",),
                      example={"x": np.arange(12, dtype=np.float32).reshape(3, 4)})
    """)
    model = "import jax\n@jax.jit\ndef inner(a):\n    return jax.nn.gelu(a)\ndef fn(params, x):\n    return inner(x @ params['w'])\n"
    programs = []
    for name, text in (("first", model), ("second", "# a comment\n\n" + model)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.py").write_text(text)
        (folder / "go.py").write_text(source)
        command = [sys.executable, str(folder / "go.py"), str(folder / "models" / "m" / "1")]
        subprocess.run(command, check=True, cwd=folder, env=os.environ)
        programs.append((folder / "models/m/1/programs/predict.jaxexport").read_bytes())
    assert programs[0] == programs[1]
    assert b".py" not in programs[0] and str(tmp_path).encode() not in programs[0]


def test_a_short_example_still_gives_different_rows(tmp_path: Path) -> None:
    """One row is enough: what repeats is moved, so that swapped rows cannot pass as right."""
    path = export_iris(tmp_path / "iris" / "1", example=iris_rows(1))
    ragged = open_bundle(path).goldens()[-1].inputs["x"]
    assert len({row.tobytes() for row in ragged}) == 3
    # And what an export counts as wrong is a real distance.
    assert open_bundle(path).manifest.tolerances["cpu"]["predict/logits"].wrong > 0


def test_every_refusal_has_an_exit_code() -> None:
    for kind in ConvertError.__subclasses__():
        assert kind.exit_code in (2, 3, 4)


def test_the_model_folder_is_named_by_what_is_allowed_in_a_url(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=r"model name 'my model'"):
        export_iris(tmp_path / "my model" / "1")
    assert list_versions(tmp_path / "my model") == []


def test_inputs_are_what_the_caller_named(iris_bundle: Path) -> None:
    assert [t.name for t in open_bundle(iris_bundle).signature().inputs] == list(IRIS)


def test_a_calling_convention_is_asked_for_and_recorded(tmp_path: Path) -> None:
    least = jax.export.minimum_supported_calling_convention_version
    most = jax.export.maximum_supported_calling_convention_version
    bundle = open_bundle(export_iris(tmp_path / "iris" / "1", calling_convention=least))
    assert bundle.manifest.calling_convention == bundle.exported().calling_convention_version == least
    for none in (least - 1, most + 1):
        with pytest.raises(
            BadSpec, match=rf"--calling-convention {none}: jax .* writes {least} to {most}; leave it"
        ):
            export_iris(tmp_path / "iris" / "2", calling_convention=none)
    assert open_bundle(export_iris(tmp_path / "iris" / "3")).manifest.calling_convention == most
