import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.jobs.command_line import let_ranks_go

# As under make: threads of several processes on few cores wait for each other, most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says more about the machine; pytest-timeout catches what hangs. Every
# run draws other examples, so that a few in each are soon many.
settings.register_profile(
    "any_machine", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any_machine")
# Where it only counts that a test fails, for `make mutants`: a smaller example is not looked for,
# and every run draws the same examples, so that a mutant is noticed always or never.
settings.register_profile(
    "any_failure",
    settings.get_profile("any_machine"),
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
    derandomize=True,
)

# What a shell starts in the background ignores SIGINT, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects tests without looking for garbage, which took a seventh of the time and is rare.

    Among what was imported it is not looked for later either: that took a twelfth of the tests'.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_ranks_stay() -> Generator[None]:
    yield
    let_ranks_go()
