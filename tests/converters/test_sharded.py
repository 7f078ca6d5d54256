"""Programs for several devices: how weights are cut is in the manifest, and whoever runs them needs as many devices."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from converters import from_function, load_bundle, open_bundle, placement
from converters.compare.figures import Asked
from converters.compare.machine import machine_facts, sentence
from converters.compare.side_by_side import compare
from converters.cuts import parse_axes, parse_mesh
from converters.describe import summary
from converters.errors import BadSpec, BundleError, DevicesMissing
from converters.from_function import FunctionExport, export_function
from converters.from_run import RunExport, _alike, _placed
from converters.manifest_json import parse_manifest
from converters.options import ExportOptions
from converters.shardings import parse_cuts
from converters.spec import ExportSpec, SignatureSpec
from converters.verify import verify
from jaxport.cli import main
from tests import sharded as made
from tests.converters.conftest import export_iris
from tests.converters.test_bundle import rewrite_manifest
from tests.once import OncePerRun
from train_job.presets import get_preset
from train_job.weights import skeleton


@pytest.fixture(scope="module")
def facts(once: OncePerRun, sharded: Path) -> Mapping[str, Any]:
    """What a process with two devices found."""
    module = "tests.converters.on_two_devices"
    folder = once.folder("on-two-devices", lambda folder: made.in_a_process(module, folder, sharded))
    return json.loads((folder / "facts.json").read_text())


@pytest.fixture(scope="module")
def wide(sharded: Path) -> Path:
    return sharded / "models" / "wide" / "1"


def test_the_manifest_says_how_many_devices_and_how_weights_are_cut(wide: Path, sharded: Path) -> None:
    said = json.loads((wide / "manifest.json").read_text())
    assert (said["nr_devices"], said["mesh"], said["platforms"]) == (2, {"tensor": 2}, ["cpu", "cuda"])
    assert said["shardings"] == {name: list(cut) for name, cut in made.CUTS.items()}
    assert open_bundle(wide).exported().nr_devices == 2
    one = json.loads((sharded / "models" / "one" / "1" / "manifest.json").read_text())
    assert {"mesh", "shardings"}.isdisjoint(one)
    assert "2 devices (tensor=2; 3 of 3 weights cut over them)" in summary(open_bundle(wide))
    assert "cpu, cuda; 1 device, " in summary(open_bundle(sharded / "models" / "one" / "1"))


def test_equal_programs_cut_alike_swap_and_others_do_not(wide: Path, sharded: Path) -> None:
    other = open_bundle(sharded / "coming" / "wide" / "2")
    assert open_bundle(wide).swap_key == other.swap_key
    raw = json.loads((other.path / "manifest.json").read_text()) | {"shardings": {"bias": ["tensor"]}}
    assert parse_manifest(json.dumps(raw).encode(), "m").swap_key != other.swap_key


def test_it_predicts_with_each_device_holding_its_part(facts: Mapping[str, Any]) -> None:
    assert facts["off"] < 1e-4
    assert facts["parts"] == {"up": [[4, 32]] * 2, "bias": [[32]] * 2, "down": [[32, 8]] * 2}


def test_int8_is_cut_as_the_weights_are_and_its_scales_along_their_channels(
    facts: Mapping[str, Any],
) -> None:
    assert facts["few"] == facts["parts"] | {"up.scale": [[1, 32]] * 2, "down.scale": [[1, 8]] * 2}


def test_gradients_of_a_sequence_with_sizes_lie_as_the_weights_do(facts: Mapping[str, Any]) -> None:
    assert facts["gradient"] == {"values": [6.0] * 4, "parts": [[2]] * 2}


def test_a_program_of_one_device_takes_a_batch_that_is_spread(facts: Mapping[str, Any]) -> None:
    assert facts["spread"]["off"] < 1e-4
    assert facts["spread"]["parts"] == [[3, 8]] * 2


def test_verify_starts_with_the_devices_that_it_needs(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    assert verify(wide).goldens == 2


def test_devices_are_simulated_where_nobody_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(jax.config, "update", lambda *given: asked.append(given))
    placement.simulate(1)
    placement.simulate(2)
    assert asked == [("jax_num_cpu_devices", 2)]
    with monkeypatch.context() as said:
        said.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
        placement.simulate(2)
    monkeypatch.setattr(placement, "_unsaid", lambda: False)
    placement.simulate(2)
    assert len(asked) == 1
    assert len(jax.devices()) == 1


def test_too_few_devices_are_said_with_what_to_set(wide: Path, tmp_path: Path) -> None:
    said = (
        "wants 2 devices (tensor=2), here is 1; set XLA_FLAGS=--xla_force_host_platform_device_count=2 to simulate them "
        "on the CPU"
    )
    for run in (load_bundle, lambda path: compare(path, Asked())):
        with pytest.raises(DevicesMissing) as refused:
            run(wide)
        assert str(refused.value) == f"{wide}: {said}"
    with pytest.raises(DevicesMissing) as refused:
        made.export_wide(tmp_path / "wide" / "1")
    assert (str(refused.value), refused.value.exit_code) == (f"mesh: {said}", 4)


@pytest.mark.parametrize(
    ("said", "cuts"),
    [
        (r"'\*p' for 'up': \[None, 'data'\]; axes of the mesh are needed", {"*p": (None, "data")}),
        (r"\['tensor', 'tensor'\]; axes of the mesh", {"up": ("tensor", "tensor")}),
        (r"\[\('tensor', 'tensor'\)\]; axes of the mesh", {"up": (("tensor", "tensor"),)}),
        (r"'up': 4 elements do not go into 8 equal pieces", {"up": ("eight",)}),
        (r"has 2 entries, the shape is \[64\]", {"bias": (None, "tensor")}),
        (r"no weight is called like 'other'; the names are", {"other": (None,)}),
    ],
)  # fmt: skip
def test_cuts_that_do_not_fit_are_named(said: str, cuts: dict[str, Any]) -> None:
    with pytest.raises(BadSpec, match=said):
        parse_cuts({"tensor": 2, "eight": 8}, cuts, made.wide_params())


def test_the_first_rule_counts_and_one_device_has_none() -> None:
    rules = {"d*": (), "*": (None, "tensor"), "bias": ("tensor",)}
    with pytest.raises(BadSpec, match="'bias': has 2 entries"):
        parse_cuts({"tensor": 2}, rules, made.wide_params())
    rules = {"d*": (), "bias": ("tensor",), "*": (None, "tensor")}
    cuts = parse_cuts({"tensor": 2}, rules, made.wide_params())
    assert cuts == {"bias": ("tensor",), "up": (None, "tensor")}
    with pytest.raises(BadSpec, match="given for one device; a mesh of several is needed"):
        parse_cuts({}, rules, made.wide_params())


@pytest.mark.parametrize("flag", ["tensor", "tensor=", "tensor=x", "tensor=0", "tensor=2,tensor=2", "a b=2"])
def test_a_mesh_that_is_none_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_axes("tensor=2") == {"tensor": 2} == parse_mesh({"tensor": 2})
    assert parse_axes("tensor=1") == parse_axes("") == {}
    assert parse_mesh(jax.sharding.AbstractMesh((2, 3), ("data", "tensor"))) == {"data": 2, "tensor": 3}
    with pytest.raises(BadSpec, match="mesh: 2 is no mapping"):
        parse_mesh(2)
    assert main(["export", "--run", "nothing", "--mesh", flag]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mesh" in line


def test_a_format_of_one_device_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("stablehlo", "savedmodel", "onnx"):  # also of one that could not be written here
        assert main(["export", "--run", "nothing", "--mesh", "tensor=2", f"--{name}"]) == 2
        assert (
            f"formats: {name} beside a mesh of 2 devices (tensor=2); it holds a program for one device: leave one of the two out"
            in capsys.readouterr().err
        )
    with pytest.raises(BadSpec, match="stablehlo beside a mesh of 2 devices"):
        export_iris(tmp_path / "m" / "1", mesh={"tensor": 2}, formats=("stablehlo",))


def test_a_measurement_says_how_many_devices_it_was_of() -> None:
    machine = machine_facts(2)
    assert "which simulate 2 devices; jax " in sentence(machine)
    assert "H200 (2 of them), " in sentence(machine | {"platform": "gpu", "device": "H200"})
    assert "devices" not in sentence(machine_facts())


def test_a_model_of_ones_own_says_how_it_is_cut_or_is_not_exported_on_a_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ExportSpec(SignatureSpec(made.wide, {}, ("y",), {}))
    asked: list[ExportOptions] = []
    for name, value in (
        ("load_spec", lambda _: spec),
        ("_params", lambda *_: made.wide_params()),
        ("export_signatures", lambda *given, **_: asked.append(given[3]) or Path()),
    ):
        monkeypatch.setattr(from_function, name, value)
    settings = FunctionExport(tmp_path, "m:f", tmp_path, "m", options=ExportOptions(mesh={"tensor": 2}))
    with pytest.raises(BadSpec, match=r"--mesh tensor=2: m:f does not say how its params are cut; give its"):
        export_function(settings)
    spec = ExportSpec(spec.signatures, shardings=made.CUTS)
    export_function(settings)
    export_function(replace(settings, options=ExportOptions()))
    assert [(each.axes, each.shardings) for each in asked] == [({"tensor": 2}, made.CUTS), ({}, {})]


def test_a_run_of_a_model_without_rules_is_not_exported_on_a_mesh() -> None:
    with pytest.raises(BadSpec, match="the model of preset digits does not say how its weights are cut"):
        _placed(ExportOptions(mesh={"tensor": 2}), get_preset("digits"), "digits")


def test_a_version_for_other_devices_is_none_alike(sharded: Path) -> None:
    def alike(model: str, **axes: int) -> bool:
        settings = RunExport(sharded, "r", options=ExportOptions(mesh=axes))
        return _alike(settings, sharded / "models" / model, {}, None) is not None

    assert alike("wide", tensor=2) and alike("one")
    assert not alike("wide") and not alike("wide", tensor=4) and not alike("one", tensor=2)


@pytest.mark.parametrize(
    "said",
    [
        {"nr_devices": 4},
        {"nr_devices": True, "mesh": {}, "shardings": {}},
        {"mesh": {"tensor": True}},
        {"mesh": {}},
        {"mesh": {"tensor": 2, "\ud800": 1}},
        {"shardings": {"up": [None, "other"]}},
        {"shardings": {"up": [None, None, "tensor"]}},
        {"shardings": {"up": ["tensor", "tensor"]}},
        {"shardings": {"up": [["tensor", "tensor"]]}},
        {"shardings": {"up": [3]}},
        {"nr_devices": 3, "mesh": {"tensor": 3}},
        {"shardings": {"nothing": ["tensor"]}},
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_placed_is_refused(said: dict[str, Any], wide: Path) -> None:
    raw = json.loads((wide / "manifest.json").read_text())
    parse_manifest(json.dumps(raw).encode(), "manifest.json")
    with pytest.raises(BundleError, match="a field is missing or malformed"):
        parse_manifest(json.dumps(raw | said).encode(), "manifest.json")


def test_a_manifest_of_more_devices_than_its_program_has_is_refused(wide: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(wide, tmp_path / "wide" / "1"))
    rewrite_manifest(path, lambda m: m.update(nr_devices=4, mesh={"tensor": 4}))
    with pytest.raises(BundleError, match="nr_devices is 4, the program of 'predict' is for 2"):
        open_bundle(path).exported()


def test_every_rule_of_the_transformer_finds_weights_and_cuts_most_of_them() -> None:
    model: Any = get_preset("nano").model
    weights = skeleton(model).abstract
    cuts = parse_cuts({"tensor": 2}, model.tensor_parallel, weights)  # refuses a rule that finds none
    cut = sum(weights[name].size for name in cuts)
    assert cut > 0.85 * sum(weight.size for weight in weights.values())
