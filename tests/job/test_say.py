"""Messages of the package: one form, whatever names are in them."""

import pytest

from dynapipe_hpc.data.errors import print_error, warn


def test_a_message_says_who_speaks_and_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_error("\x1b[2J: cannot be read")
    assert capsys.readouterr().err == "dynapipe-hpc: \\x1b[2J: cannot be read\n"


def test_a_warning_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    warn("few cores")
    assert capsys.readouterr().err == "dynapipe-hpc: warning: few cores\n"
