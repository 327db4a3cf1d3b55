"""Runs every test on all ranks of the job: it passes on all of them or fails on all."""

import traceback
from collections.abc import Generator

import pytest
from mpi4py import MPI

TIME_LIMIT_S = 120
INNER_FRAMES = 4
WORLD = MPI.COMM_WORLD.Dup()  # messages of the tests cannot meet those of the verdict


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("mpi") and not item.get_closest_marker("timeout"):
            # A signal would not be handled while MPI waits; a thread can end the process.
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_S, method="thread"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    try:
        yield
    except pytest.skip.Exception:
        _fail_with_others("")
        raise
    except (Exception, pytest.fail.Exception) as error:
        _fail_with_others("".join(traceback.format_exception(error, limit=-INNER_FRAMES)))
        raise
    _fail_with_others("")


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


def _fail_with_others(own_failure: str) -> None:
    failures = WORLD.allgather(own_failure)
    if any(failures) and not own_failure:
        reports = (f"rank {rank}: {text}" for rank, text in enumerate(failures) if text)
        pytest.fail("\n".join(reports), pytrace=False)
