"""Progress of long jobs."""

import pytest

from dynapipe_hpc.cli import progress
from dynapipe_hpc.cli.progress import share_progress, text_progress, time_left


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


@pytest.mark.parametrize(("total", "expected"), [(8000, "50 %"), (None, "4,000 bytes")])
def test_lines_about_text_tell_no_share_of_what_is_unknown(
    capsys: pytest.CaptureFixture[str], total: int | None, expected: str
) -> None:
    """Compressed text was at 700 %, and a pipe at millions."""
    with text_progress(total) as shown:
        shown.next_line_s = 0.0
        shown.show(4000, 1234)
    assert capsys.readouterr().err.startswith(f"{expected} done, 1,234 tokens, ")
