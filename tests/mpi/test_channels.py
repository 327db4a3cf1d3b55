"""Channels leave nothing behind in the MPI library, on several ranks."""

from collections.abc import Callable

import pytest
from tests.examples.kept_communicators import KINDS, check_nothing_is_kept

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("use", KINDS)
def test_what_is_closed_keeps_no_communicators(use: Callable[[], None]) -> None:
    check_nothing_is_kept(use)
