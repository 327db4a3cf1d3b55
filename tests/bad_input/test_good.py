"""The good inputs that bad ones are made of are good: what is refused is what was changed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.bad_input import good
from tests.bad_input.worker import Worker

COMMANDS = {
    name: value for name, value in vars(good).items() if name.isupper() and type(value) is tuple
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_good_input_goes_through(worker: Worker, folder: Path, arguments: Sequence[str]) -> None:
    ended = worker.call(folder, arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
