"""Progress of long jobs."""

import pytest

from dynapipe_hpc.cli import progress
from dynapipe_hpc.cli.progress import share_progress, time_left


def test_the_time_left_is_not_told_before_a_share_is_done() -> None:
    """It began with 158,262 s."""
    assert time_left(0.0, 10.0) == ""
    assert time_left(10 / 158_272, 10.0) == ""
    assert time_left(0.25, 10.0) == "30 s left"


def test_lines_of_a_log_tell_the_share_and_then_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with share_progress("profile", shown=True) as show:
        show(0.001)
        show(0.5)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "profile: 0 % done"
    assert second == "profile: 50 % done, 0 s left"


def test_no_share_is_told_of_what_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed text was at 700 %, and a pipe at millions."""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with share_progress("preprocess") as show:
        show(None, "1,234 tokens")
    assert capsys.readouterr().err == "preprocess: 1,234 tokens\n"
