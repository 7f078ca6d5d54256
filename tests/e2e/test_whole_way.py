"""Text -> training -> checkpoint -> bundle -> server -> Predict, by the commands alone."""

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from converters.bundle import open_bundle
from jaxport import Client, ServerError
from jaxport.cli import main
from tests.e2e.conftest import Made
from tests.server_process import ROOT, ServerProcess, eventually
from tests.servers import jaxport, running_server
from train_job.checkpoints import choose_step, load_params
from train_job.presets import get_preset


def test_a_bundle_answers_as_the_checkpoint_it_came_from(made: Made) -> None:
    run_dir = made.root / "runs" / "nano"
    preset = get_preset("nano")
    inputs = preset.example_inputs(5, seed=3)
    weights = load_params(run_dir, choose_step(run_dir, "latest").step)
    want = np.asarray(preset.predict_fn()(weights, inputs)["logits"])
    bundle = open_bundle(made.models / "nano" / "1")
    got = np.asarray(bundle.exported().call(bundle.load_weights(), inputs)["logits"])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_bundle_says_which_run_it_came_from(made: Made) -> None:
    provenance = open_bundle(made.models / "nano" / "1").manifest.provenance
    assert (provenance["run"], provenance["preset"], provenance["step"]) == ("nano", "nano", 20)
    assert len(provenance["fingerprint"]) == 64 and "val_bits_per_byte" in provenance["metrics"]
    assert provenance["data"]["sha256"]


def test_verify_passes_in_a_process_without_flax(made: Made) -> None:
    done = jaxport("verify", str(made.models / "nano" / "1"))
    assert done.returncode == 0, done.stderr


def test_an_export_job_waits_for_a_run_that_is_not_there_yet(made: Made, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "jaxport",
        "export",
        "--run",
        "digits",
        "--wait",
        "--root",
        str(tmp_path),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline().startswith("waiting for ")
        shutil.copytree(made.root / "runs" / "digits", tmp_path / "copying")
        (tmp_path / "runs").mkdir()
        (tmp_path / "copying").rename(tmp_path / "runs" / "digits")
        assert waiting.wait(120) == 0
    assert open_bundle(tmp_path / "models" / "digits" / "1").manifest.provenance["step"] == 20


def test_one_server_answers_all_models_takes_a_new_version_and_leaves_nothing_unanswered(
    made: Made, tmp_path: Path
) -> None:
    with running_server(made.models, "--max-batch", "8", "--drain-delay", "0.5") as server:
        answers_all(server, tmp_path)
        serves_what_is_exported(server, made)
        answers_all_that_it_accepted(server)


def answers_all(server: ServerProcess, folder: Path) -> None:
    at = ("--address", server.grpc)
    text = jaxport("predict", "nano", "--text", "the quick ", "--bytes", "8", "--json", *at)
    assert len(json.loads(text.stdout)["continuation"]) == 8, text.stderr
    pixels = get_preset("digits").example_inputs(4, seed=0)["pixels"]
    np.save(folder / "pixels.npy", pixels)
    digits = jaxport("predict", "digits", "--input", f"pixels=@{folder / 'pixels.npy'}", "--json", *at)
    assert np.array(json.loads(digits.stdout)["logits"]).shape == (4, 10), digits.stderr
    answers_as_its_module_does(server)


def answers_as_its_module_does(server: ServerProcess) -> None:
    """A model from outside of the package, whose source the server has never seen."""
    images = np.full((3, 8, 8), 0.5, np.float32)
    with Client(server.grpc) as client:
        logits = client.predict("convnet", {"images": images})["logits"]
        assert client.model("convnet").usage["task"] == "classification"
    assert logits.shape == (3, 10) and np.isfinite(logits).all() and np.ptp(logits[0]) > 0


def serves_what_is_exported(server: ServerProcess, made: Made) -> None:
    """A new version, without a restart or a lost request."""
    inputs = get_preset("digits").example_inputs(1, seed=0)
    with Client(server.grpc) as client:
        assert client.model("digits").version == 1
        done = jaxport("export", "--run", "digits", "--step", "10", "--root", str(made.root))
        assert done.returncode == 0, done.stderr
        deadline = time.monotonic() + 60
        while client.model("digits").version != 2:
            client.predict("digits", inputs)
            assert time.monotonic() < deadline, "".join(server.lines)
        client.predict("digits", inputs)


def answers_all_that_it_accepted(server: ServerProcess) -> None:
    """Closed loops on two models; every call ends with its answer or with the refusal of a server that is leaving."""
    inputs = {name: get_preset(name).example_inputs(1, seed=0) for name in ("nano", "digits")}
    answered, refused, wrong = [], [], []

    def caller(model: str) -> None:
        with Client(server.grpc) as client:
            while not refused or refused[0] > time.monotonic() - 1:
                try:
                    client.predict(model, inputs[model])
                    answered.append(time.monotonic())
                except ServerError as error:
                    (refused if error.code.name == "UNAVAILABLE" else wrong).append(time.monotonic())
                    return

    threads = [threading.Thread(target=caller, args=(m,)) for m in inputs for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) > 100, "the load runs", 60)
    told = time.monotonic()
    server.signal()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert server.wait() == 0
    assert wrong == []
    assert max(answered) > told, "it goes on answering while it drains"


@pytest.mark.parametrize("stage", ["train", "export"])
def test_a_volume_that_cannot_be_written_is_exit_code_4(
    made: Made, stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file lies where a folder is needed: the same refusal for root, who may write anywhere."""
    root = tmp_path / "root"
    if stage == "train":
        root.write_text("")
        code = main(["train", "--preset", "digits", "--steps", "2", "--root", str(root)])
    else:
        shutil.copytree(made.root / "runs", root / "runs")
        (root / "models").write_text("")
        code = main(["export", "--run", "digits", "--root", str(root)])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 4 and line.startswith("error: ")
