"""Who may know what: each room imports only what docs/architecture.md allows it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL_LIBRARIES = {"flax", "optax", "tensorflow", "train_job"}


def loaded_after(statement: str) -> set[str]:
    """Top-level names in sys.modules of a fresh process that ran `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def modules_of(package: str) -> str:
    files = sorted((ROOT / package).rglob("*.py"))
    names = [".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files]
    return "import " + ", ".join(name for name in names if not name.endswith("__main__"))


def test_the_server_knows_no_model_library() -> None:
    assert loaded_after(modules_of("serve_grpc")) & MODEL_LIBRARIES == set()


def test_the_bundle_reader_knows_numpy_jax_and_orbax() -> None:
    allowed = loaded_after("import numpy, jax.export, ml_dtypes") | {"converters"} | sys.stdlib_module_names
    loaded = loaded_after("import converters.bundle, converters.loaded, converters.gradient")
    assert loaded - allowed == set()


def test_only_the_exporter_of_runs_knows_the_training() -> None:
    others = "export refresh draft writer formats verify describe spec weights compare.side_by_side"
    imports = ", ".join(f"converters.{module}" for module in others.split())
    assert loaded_after(f"import {imports}") & MODEL_LIBRARIES == set()


def test_the_process_of_a_saved_model_has_no_jax_before_it_has_tensorflow() -> None:
    assert "jax" not in loaded_after("import converters.compare.saved_model_process")


def test_a_format_is_run_without_jax_and_without_the_others() -> None:
    loaded = loaded_after(
        "import converters.formats.answers, converters.formats.savedmodel, converters.formats.onnx"
    )
    assert loaded & {"jax", "tensorflow", "onnx", "jax2onnx", "onnxruntime", "iree"} == set()


def test_only_what_is_of_savedmodels_knows_tensorflow() -> None:
    sources = sorted((ROOT / "converters").rglob("*.py"))
    named = re.compile(r"import tensorflow|from tensorflow|library\(.tensorflow")
    known = [path.name for path in sources if named.search(path.read_text())]
    assert known == ["saved_model_process.py", "savedmodel.py"]


def test_the_client_needs_no_jax() -> None:
    loaded = loaded_after(
        "import jaxport; jaxport.Client; import jaxport.commands.predict, jaxport.commands.bench"
    )
    assert loaded & ({"jax", "converters", "serve_grpc"} | MODEL_LIBRARIES) == set()


def test_the_command_line_imports_nothing_heavy_for_help() -> None:
    loaded = loaded_after("from jaxport.cli import main\ntry: main(['--help'])\nexcept SystemExit: print()")
    assert loaded & ({"jax", "numpy.random", "converters", "serve_grpc"} | MODEL_LIBRARIES) == set()


def test_only_the_launcher_knows_kubernetes() -> None:
    others = "predict, bench, drain, serve, train, export, verify, inspect, compare, promote"
    loaded = loaded_after(f"import jaxport, jaxport.cli\nfrom jaxport.commands import {others}")
    assert loaded & {"kubernetes", "yaml", "urllib3"} == set()


def test_the_launcher_needs_neither_jax_nor_a_model() -> None:
    loaded = loaded_after(
        "from jaxport.commands import submit, status, logs, cancel\nimport train_job.settings"
    )
    assert loaded & {"jax", "flax", "optax", "serve_grpc", "converters"} == set()


def test_runs_are_listed_without_what_trains_them() -> None:
    heavy = {
        "jax",
        "flax",
        "optax",
        "matplotlib",
        "tensorboardX",
        "orbax",
        "kubernetes",
        "grpc",
        "converters",
    }
    assert loaded_after("from jaxport.commands import runs") & heavy == set()


def test_training_knows_neither_bundles_nor_servers() -> None:
    """And no start waits for what draws the end of a run."""
    others = {"converters", "serve_grpc", "grpc", "matplotlib"}
    assert loaded_after(modules_of("train_job")) & others == set()


def test_nothing_reaches_into_private_jax() -> None:
    packages = ("train_job", "converters", "serve_grpc", "jaxport")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert [str(path) for path in sources if "jax._src" in path.read_text()] == []
