"""`jaxport export --run`, as a Job runs it: again, beside another, and of an earlier step."""

from concurrent.futures import ThreadPoolExecutor

from converters.bundle import open_bundle
from tests.conftest import Told
from tests.converters.runs.conftest import Made
from tests.servers import jaxport

OF_DIGITS = ("export", "--run", "digits")


def test_an_earlier_step_and_the_best_one_can_be_exported(made: Made, told: Told) -> None:
    flags = (*OF_DIGITS, "--root", str(made.root), "--name", "other", "--platforms", "cpu")
    for step in ("80", "best"):
        code, _, err = told(*flags, "--step", step)
        assert code == 0, err
    earlier, best = (open_bundle(made.models / "other" / version) for version in ("1", "2"))
    assert earlier.manifest.provenance["step"] == 80
    assert earlier.swap_key == best.swap_key
    assert earlier.manifest.weights != best.manifest.weights
    code, _, err = told(*flags, "--step", "7")
    assert code == 2 and "80, 100" in err


def test_a_repeated_export_job_keeps_what_is_there_and_mends_what_is_damaged(made: Made, told: Told) -> None:
    same = (*OF_DIGITS, "--step", "80", "--name", "again", "--skip-existing", "--root", str(made.root))

    def export(*flags: str) -> str:
        code, out, err = told(*same, *flags)
        assert code == 0, err
        return out.splitlines()[-1]

    model = made.models / "again"
    with ThreadPoolExecutor(2) as both:
        ended = list(both.map(lambda _: jaxport(*same), range(2)))
    kept, wrote = sorted(done.stdout.splitlines()[-1] for done in ended)
    assert wrote.startswith(f"wrote {model / '1'}") and kept.startswith(f"kept {model / '1'}"), (
        "of two at once"
    )
    assert export().startswith(f"kept {model / '1'}")
    assert export("--platforms", "cpu").startswith(f"wrote {model / '2'}"), (
        "other platforms are another bundle"
    )
    assert export("--step", "100").startswith(f"wrote {model / '3'}"), "another step is another bundle"
    program = model / "1" / "programs" / "predict.jaxexport"
    program.write_bytes(program.read_bytes()[:-1] + b"x")
    assert export().startswith(f"wrote {model / '4'}"), "a damaged version is none"
    assert export().startswith(f"kept {model / '4'}")


def test_a_model_without_a_sequence_has_no_dynamic_length(made: Made, told: Told) -> None:
    code, _, err = told(*OF_DIGITS, "--dynamic-length", "--root", str(made.root))
    assert code == 2
    assert err.splitlines()[-1].endswith("preset digits has no sequence; its inputs are of fixed sizes")
