"""Text -> training -> checkpoint -> bundle -> server -> Predict, by the commands alone."""

import json
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from converters.bundle import open_bundle
from jaxport import Client, ServerError
from tests.e2e.conftest import Made
from tests.server_process import ROOT
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
    assert (provenance["run"], provenance["preset"], provenance["step"]) == ("nano", "nano", 40)
    assert len(provenance["fingerprint"]) == 64 and "val_bits_per_byte" in provenance["metrics"]
    assert provenance["data"]["sha256"]


def test_verify_passes_in_a_process_without_flax(made: Made) -> None:
    for name in ("nano", "digits"):
        done = jaxport("verify", str(made.models / name / "1"))
        assert done.returncode == 0, done.stderr


def test_an_earlier_step_and_the_best_one_can_be_exported(made: Made, tmp_path: Path) -> None:
    flags = ("--root", str(made.root), "--name", "other")
    for step in ("20", "best"):
        done = jaxport("export", "--run", "nano", "--step", step, *flags)
        assert done.returncode == 0, done.stderr
    earlier, best = (open_bundle(made.models / "other" / version) for version in ("1", "2"))
    assert earlier.manifest.provenance["step"] == 20
    assert earlier.swap_key == best.swap_key == open_bundle(made.models / "nano" / "1").swap_key
    none = jaxport("export", "--run", "nano", "--step", "7", *flags)
    assert none.returncode == 2 and "20, 40" in none.stderr


def test_a_repeated_export_job_keeps_what_is_there_and_mends_what_is_damaged(made: Made) -> None:
    def export(*flags: str) -> str:
        same = (
            "--run",
            "nano",
            "--step",
            "20",
            "--name",
            "again",
            "--skip-existing",
            "--root",
            str(made.root),
        )
        done = jaxport("export", *same, *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    model = made.models / "again"
    with ThreadPoolExecutor(2) as both:
        kept, wrote = sorted(both.map(lambda _: export(), range(2)))
    assert wrote.startswith(f"wrote {model / '1'}") and kept.startswith(f"kept {model / '1'}"), (
        "of two at once"
    )
    assert export().startswith(f"kept {model / '1'}")
    assert export("--platforms", "cpu").startswith(f"wrote {model / '2'}"), (
        "other platforms are another bundle"
    )
    assert export("--step", "40").startswith(f"wrote {model / '3'}"), "another step is another bundle"
    program = model / "1" / "programs" / "predict.jaxexport"
    program.write_bytes(program.read_bytes()[:-1] + b"x")
    assert export().startswith(f"wrote {model / '4'}"), "a damaged version is none"
    assert export().startswith(f"kept {model / '4'}")


def test_an_export_job_waits_for_a_run_that_is_not_there_yet(made: Made, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxport", "export", "--run", "nano", "--wait", "--root", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline().startswith("waiting for ")
        shutil.copytree(made.root / "runs" / "nano", tmp_path / "copying")
        (tmp_path / "runs").mkdir()
        (tmp_path / "copying").rename(tmp_path / "runs" / "nano")
        assert waiting.wait(60) == 0
    assert open_bundle(tmp_path / "models" / "nano" / "1").manifest.provenance["step"] == 40


def test_a_model_without_a_sequence_has_no_dynamic_length(made: Made) -> None:
    done = jaxport("export", "--run", "digits", "--dynamic-length", "--root", str(made.root))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "preset digits has no sequence; its inputs are of fixed sizes"
    )


def test_one_server_answers_both_models(made: Made, tmp_path: Path) -> None:
    with running_server(made.models, "--max-batch", "8") as server:
        at = ("--address", server.grpc)
        text = jaxport("predict", "nano", "--text", "the quick ", "--bytes", "8", "--json", *at)
        assert len(json.loads(text.stdout)["continuation"]) == 8, text.stderr
        pixels = get_preset("digits").example_inputs(4, seed=0)["pixels"]
        np.save(tmp_path / "pixels.npy", pixels)
        digits = jaxport("predict", "digits", "--input", f"pixels=@{tmp_path / 'pixels.npy'}", "--json", *at)
        assert np.array(json.loads(digits.stdout)["logits"]).shape == (4, 10), digits.stderr


def test_every_request_accepted_before_sigterm_is_answered(made: Made, tmp_path: Path) -> None:
    """Closed loops on two models; every call ends with its answer or with the refusal of a server that is leaving."""
    with running_server(made.models, "--max-batch", "8", "--drain-delay", "0.5") as server:
        inputs = {
            "nano": get_preset("nano").example_inputs(1, seed=0),
            "digits": get_preset("digits").example_inputs(1, seed=0),
        }
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

        threads = [threading.Thread(target=caller, args=(m,)) for m in ("nano", "digits") for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        told = time.monotonic()
        server.signal()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        assert server.wait() == 0
        assert wrong == []
        assert max(answered) > told, "it goes on answering while it drains"


def test_a_new_version_is_served_without_a_restart_or_a_lost_request(made: Made, tmp_path: Path) -> None:
    import shutil

    models = tmp_path / "models"
    shutil.copytree(made.models / "digits" / "1", models / "digits" / "1")
    inputs = get_preset("digits").example_inputs(1, seed=0)
    with (
        running_server(models, "--max-batch", "8") as server,
        Client(server.grpc) as client,
    ):
        done = jaxport("export", "--run", "digits", "--root", str(made.root), "--name", "digits-again")
        assert done.returncode == 0, done.stderr
        # As an export does it: written under a hidden name, then renamed.
        shutil.copytree(made.models / "digits-again" / "1", models / "digits" / ".claim-2")
        (models / "digits" / ".claim-2").rename(models / "digits" / "2")
        deadline = time.monotonic() + 30
        while client.model("digits").version != 2:
            client.predict("digits", inputs)
            assert time.monotonic() < deadline, "".join(server.lines)
        client.predict("digits", inputs)


@pytest.mark.parametrize("stage", ["train", "export"])
def test_a_volume_that_cannot_be_written_is_exit_code_4(made: Made, stage: str, tmp_path: Path) -> None:
    """A file lies where a folder is needed: the same refusal for root, who may write anywhere."""
    import shutil

    root = tmp_path / "root"
    if stage == "train":
        root.write_text("")
        done = jaxport("train", "--preset", "digits", "--steps", "2", "--root", str(root))
    else:
        shutil.copytree(made.root / "runs", root / "runs")
        (root / "models").write_text("")
        done = jaxport("export", "--run", "digits", "--root", str(root))
    assert done.returncode == 4, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
