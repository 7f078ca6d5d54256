"""What the images are, and what is not in them."""

import json
from collections.abc import Sequence

import pytest

from deploy.images.engine import Engine

MOST_SERVE_BYTES = 950_000_000
# What a read-only root with no capabilities gets: the settings of the manifests.
LOCKED = ["--rm", "--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
NOT_TO_SERVE = ("flax", "optax", "tensorflow", "sklearn", "matplotlib")
TOOLS = ("pip", "gcc", "cc", "c++", "make", "ld", "cargo", "uv", "hatch", "git", "curl")
COMPILED = """
import importlib.util, sys, {module}
loaded = [m for m in list(sys.modules.values()) if (getattr(m, "__file__", None) or "").endswith(".py")]
def compiled(module):
    with open(importlib.util.cache_from_source(module.__file__), "rb") as file:
        return file.read(8)[4:] == b"\\x01\\0\\0\\0" or "/opt/jaxport/" not in module.__file__
print(len(loaded), [m.__file__ for m in loaded if not compiled(m)])
"""


@pytest.fixture(params=["train", "export", "serve"])
def image(images: dict[str, str], request: pytest.FixtureRequest) -> str:
    return images[request.param]


def inside(engine: Engine, image: str, program: str, *arguments: str, flags: Sequence[str] = ()) -> str:
    """What `program` of the image prints with nothing that it may write; it must end with 0."""
    plain = ["--read-only-tmpfs=false"] if engine.name == "podman" else []
    ended = engine.run("run", *LOCKED, *plain, *flags, "--entrypoint", program, image, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_runs_as_10001_and_is_the_command_itself(engine: Engine, image: str) -> None:
    config = json.loads(engine.ask("image", "inspect", image))[0]["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["jaxport"]
    assert config["Cmd"] == [image.rpartition("/")[2].partition(":")[0], "--help"]
    assert inside(engine, image, "id") == "uid=10001(jaxport) gid=10001(jaxport) groups=10001(jaxport)"
    assert inside(engine, image, "jaxport", "--version").endswith(
        image.rpartition(":")[2].removesuffix("-cpu")
    )


def test_says_what_it_is_and_nothing_of_where_it_was_built(engine: Engine, image: str) -> None:
    config = json.loads(engine.ask("image", "inspect", image))[0]["Config"]
    stated = {
        name.rpartition(".")[2]: value for name, value in config["Labels"].items() if "opencontainers" in name
    }
    assert stated["title"] == f"jaxport {config['Cmd'][0]}"
    assert stated["licenses"] == "Apache-2.0"
    assert all(stated[name] for name in ("version", "revision", "source", "created"))
    names = {variable.partition("=")[0] for variable in config["Env"]}
    assert not [name for name in names if name.startswith(("PIP_", "SSL_", "http", "HTTP"))]
    assert inside(engine, image, "sh", "-c", "ls -A /run/pip; ls -A /tmp; ls -d ~root/.cache || true") == ""


def test_has_no_compiler_and_no_installer(engine: Engine, image: str) -> None:
    found = inside(
        engine, image, "sh", "-c", f"for tool in {' '.join(TOOLS)}; do command -v $tool || true; done"
    )
    assert found == ""
    modules = inside(
        engine,
        image,
        "python",
        "-c",
        "import importlib.util as u; print([n for n in ('pip', 'hatchling', 'uv', 'pytest') if u.find_spec(n)])",
    )
    assert modules == "[]"


@pytest.mark.parametrize(
    ("target", "module"),
    [("train", "train_job.training"), ("export", "converters.from_run"), ("serve", "serve_grpc.server")],
)
def test_imports_from_byte_code_alone(
    engine: Engine, images: dict[str, str], target: str, module: str
) -> None:
    program, tmp = COMPILED.format(module=module), ["--tmpfs=/tmp"]  # matplotlib will not do without
    number, without = inside(engine, images[target], "python", "-c", program, flags=tmp).split(" ", 1)
    assert int(number) > 500
    assert without == "[]"


def test_the_root_cannot_be_written(engine: Engine, image: str) -> None:
    tried = "for f in / /tmp /work /opt/jaxport /run /home; do touch $f/x 2>/dev/null && echo $f; done; true"
    assert inside(engine, image, "sh", "-c", tried) == ""


def test_serve_is_small_and_knows_no_training(engine: Engine, images: dict[str, str]) -> None:
    assert engine.size(images["serve"]) < MOST_SERVE_BYTES
    program = f"import importlib.util as u; print([n for n in {NOT_TO_SERVE} if u.find_spec(n)])"
    assert inside(engine, images["serve"], "python", "-c", program) == "[]"
