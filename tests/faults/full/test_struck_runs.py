"""kill -9 and SIGTERM at drawn moments: what comes out at the end is what would have come out anyway, bit for bit."""

import pytest

from tests.faults import kills


@pytest.mark.parametrize("processes", ["1", "2"])
def test_struck_runs_end_with_the_weights_of_one_left_alone(
    processes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = kills.main(["--moments", "8", "--seed", "20", "--processes", processes])
    assert code == 0, capsys.readouterr().out
