"""Requests to trace iterations of a run that executes."""

from pathlib import Path

import pytest

from dynapipe_hpc.experiment.run.iteration import NAME, NOTHING, TraceRequest

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("120-130\n", (120, 130)),
        ("120", (120, 120)),
        ("+10", (100, 109)),
        ("90-130", (100, 130)),
        ("100", (100, 100)),
    ],
)
def test_a_request_is_taken_once(
    tmp_path: Path, text: str, expected: tuple[int, int], capsys: Output
) -> None:
    request = TraceRequest(tmp_path)
    assert request.take(100) == NOTHING
    (tmp_path / NAME).write_text(text)
    assert request.take(100) == expected
    assert not (tmp_path / NAME).exists()
    assert request.take(101) == NOTHING
    assert f"iterations {expected[0]} to {expected[1]} are traced" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["all", "-5", "5-3", "99", "0-99", "130-120", "+0", "1e3"])
def test_a_request_that_cannot_be_used_is_said_once(
    tmp_path: Path, text: str, capsys: Output
) -> None:
    (tmp_path / NAME).write_text(text)
    request = TraceRequest(tmp_path)
    assert request.take(100) == NOTHING
    assert request.take(101) == NOTHING
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"trace.request: '{text}' " in err
    assert "+10" in err


def test_a_request_that_is_being_written_is_taken_later(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    request = TraceRequest(tmp_path)
    assert request.take(3) == NOTHING
    (tmp_path / NAME).write_text("+2")
    assert request.take(4) == (4, 5)


def test_what_is_no_file_is_said_once_and_does_not_end_the_run(
    tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / NAME).mkdir()
    request = TraceRequest(tmp_path)
    assert [request.take(k) for k in range(3)] == [NOTHING] * 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.endswith("requests are no longer looked for\n")
