"""Other tests do not notice that one forbade waiting; no GPU is needed to see that."""

import warnings

import pytest
import torch
from tests.gpu.no_waiting import no_waiting


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """The modes that were set, by a torch that warns after it has set one, as the real one does."""
    modes: list[int | str] = ["default"]

    def set_mode(mode: int | str) -> None:
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    return modes


def test_a_block_ends_with_the_mode_it_began_with(modes: list[int | str]) -> None:
    with no_waiting():
        assert modes[-1] == "error"
    assert modes[-1] == "default"


def test_so_does_a_block_that_waited(modes: list[int | str]) -> None:
    with pytest.raises(RuntimeError, match="waited"), no_waiting():
        raise RuntimeError("waited")
    assert modes[-1] == "default"
