"""The rules and docs/lint.md say the same, every model of the document breaks its rule, and its cure does not."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters import SequenceSpec, TensorSpec, export_bundle
from converters.errors import BadSpec, ExportRefused
from converters.lint import RULES, Findings
from converters.lint.findings import check_allowed
from converters.program import as_program, export_program
from converters.spec import parse_inputs
from converters.weights import flatten_params
from train_job.presets import get_preset
from train_job.weights import skeleton

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "lint.md"
HEADING = re.compile(r"^## (JP\d+): (\S+)\n(.*?)(?=^## |\Z)", re.M | re.S)
MODEL = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
SECTIONS = {code: (name, text) for code, name, text in HEADING.findall(DOCUMENT.read_text())}
# Their cures have to pass the whole proof; of the others it is enough that the rules read from the program are silent.
PROVEN = {"JP106", "JP107", "JP108", "JP112", "JP113", "JP121", "JP122"}


def export(path: Path, code: str, source: str) -> Any:
    """A model of the document, as it says at its head."""
    names: dict[str, Any] = {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "TensorSpec": TensorSpec,
        "SequenceSpec": SequenceSpec,
    }
    names["params"] = {"w": np.eye(4, dtype=np.float32) * 2}
    exec(compile(source, f"{DOCUMENT.name}:{code}", "exec"), names)  # noqa: S102
    arguments: dict[str, Any] = {
        "inputs": {"x": TensorSpec("float32", "b, 4")},
        "outputs": ("y",),
        "example": {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)},
        "platforms": ("cpu", "cuda"),
    } | names.get("arguments", {})
    if path.name == "lint":
        return lint(names["fn"], names["params"], arguments)
    return export_bundle(path, names["fn"], names["params"], **arguments)


def lint(fn: Any, params: Any, arguments: dict[str, Any]) -> list[str]:
    """Only what is read from the program, with everything allowed that may be; gives what was found."""
    sequence = arguments.get("sequence")
    _, tensors = parse_inputs(arguments["inputs"], sequence)
    weights, findings = (
        flatten_params(params),
        Findings({c: "test" for c, rule in RULES.items() if rule.risk}),
    )
    program = as_program(fn, weights.rebuild, arguments["outputs"])
    constraints = () if sequence is None else (f"{sequence.symbol} <= {sequence.most}",)
    export_program(program, weights.arrays, tensors, arguments["platforms"], constraints, findings)
    return list(findings.allowed)


def test_the_document_has_every_rule_and_no_other() -> None:
    assert {code: name for code, (name, _) in SECTIONS.items()} == {c: rule.name for c, rule in RULES.items()}
    assert list(RULES) == sorted(RULES)
    for code, (_, text) in SECTIONS.items():
        flat = " ".join(text.split())
        assert ("May be allowed" in flat, "May never be allowed" in flat) == (
            bool(RULES[code].risk),
            not RULES[code].risk,
        )
        assert len(MODEL.findall(text)) == 2, code


@pytest.mark.parametrize("code", SECTIONS)
def test_a_model_that_breaks_the_rule_is_refused_by_it(code: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=rf"^{code}: ") as refused:
        export(tmp_path / "m" / "1", code, MODEL.findall(SECTIONS[code][1])[0])
    message, rule = str(refused.value), RULES[code]
    assert refused.value.code == code and "\n" not in message
    assert rule.cure in message
    assert message.endswith(f"--allow {code}=REASON") == bool(rule.risk)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("code", SECTIONS)
def test_its_cure_is_silent(code: str, tmp_path: Path) -> None:
    place = tmp_path / "m" / "1" if code in PROVEN else Path("lint")
    found = export(place, code, MODEL.findall(SECTIONS[code][1])[1])
    assert found == ([] if place == Path("lint") else place)


@pytest.mark.parametrize(
    "code", [code for code, rule in RULES.items() if rule.risk and code not in ("JP102", "JP103")]
)
def test_what_may_be_allowed_is_let_through(code: str) -> None:
    assert export(Path("lint"), code, MODEL.findall(SECTIONS[code][1])[0]) == [code]


def test_a_call_that_is_promised_for_no_release_is_let_through_too() -> None:
    assert export(Path("lint"), "JP102", MODEL.findall(SECTIONS["JP102"][1])[0]) == ["JP102"]


def test_only_what_risks_no_wrong_answer_may_be_allowed() -> None:
    assert {code for code, rule in RULES.items() if rule.risk} == {
        "JP102",
        "JP103",
        "JP113",
        "JP115",
        "JP116",
        "JP119",
    }
    for code, rule in RULES.items():
        if not rule.risk:
            with pytest.raises(BadSpec, match=f"allow {code}: {rule.name} may never be allowed"):
                check_allowed({code: "because"})


def zeros(preset: Any) -> dict[str, np.ndarray]:
    """Params of the right shapes: what is read from a program knows no values."""
    return {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in skeleton(preset.model).abstract.items()}


@pytest.mark.parametrize("name", ["tiny", "nano", "digits"])
@pytest.mark.parametrize("any_length", [False, True])
def test_the_presets_break_none(name: str, any_length: bool) -> None:
    """Their programs; that their rows stand for themselves is proven wherever one is exported."""
    preset = get_preset(name)
    signature, predict = preset.predict_signature, preset.predict_fn()
    if any_length and not signature.any_length:
        pytest.skip("its inputs are of fixed sizes")
    takes = signature.any_length if any_length else signature.inputs
    arguments = {
        "inputs": {name: TensorSpec(*spec) for name, spec in takes.items()},
        "outputs": tuple(signature.outputs),
        "platforms": ("cpu", "cuda"),
        "sequence": SequenceSpec("t", signature.longest) if any_length else None,
    }
    assert lint(lambda params, **inputs: predict(params, inputs), zeros(preset), arguments) == []


def draws(fn: Any) -> list[str]:
    return lint(fn, {"w": np.zeros(4, np.float32)}, {
        "inputs": {"x": TensorSpec("float32", "b, 4"), "seed": TensorSpec("uint32", "b")},
        "outputs": ("y",), "platforms": ("cpu",),
    })  # fmt: skip


def through_scan(params: Any, x: jax.Array, seed: jax.Array) -> jax.Array:
    """Only the carry of the second turn has an input's part in it."""

    def turn(carry: Any, _: Any) -> Any:
        _, mixed = carry
        return (mixed, jax.random.fold_in(mixed, seed[0])), None

    key, _ = jax.lax.scan(turn, (jax.random.key(0), jax.random.key(1)), None, length=3)[0]
    return x + jax.random.normal(key, (4,))


@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (lambda params, x, seed: x + jax.random.normal(jax.random.key(seed[0]), (4,)), []),
        (lambda params, x, seed: x + jax.random.normal(jax.random.fold_in(jax.random.key(0), seed[0]), (4,)), []),
        (through_scan, []),
        (lambda params, x, seed: jax.lax.cond(True, lambda: x + jax.random.normal(jax.random.key(1), (4,)), lambda: x), ["JP113"]),
        (lambda params, x, seed: x + jax.random.normal(jax.random.key(params["w"][0].astype("uint32")), (4,)), ["JP113"]),
        (lambda params, x, seed: jax.jit(lambda a: a + jax.random.normal(jax.random.key(1), (4,)))(x), ["JP113"]),
        (lambda params, x, seed: x + jax.random.normal(jax.random.key(seed[0], impl="rbg"), (4,)), ["JP115"]),
    ],
)  # fmt: skip
def test_noise_is_fixed_where_no_input_has_a_part_in_its_key(fn: Any, found: list[str]) -> None:
    assert draws(fn) == found
