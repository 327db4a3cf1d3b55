"""Runs tests in a forked process, so that torch is imported once for all mutants."""

import gc
import multiprocessing
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

# What takes long to import, so that forks have it.
import h5py  # noqa: F401
import hypothesis.strategies  # noqa: F401
import pydantic.main  # noqa: F401
import pytest
import torch._dynamo  # noqa: F401
from tests.mutants.changed_module import ChangedModule
from tests.mutants.loaded_once import forget

for model_type in ("gpt2", "llama", "mistral", "qwen2", "qwen3", "t5"):
    with suppress(ImportError):  # transformers and peft are optional
        import_module(f"transformers.models.{model_type}.modeling_{model_type}")
with suppress(ImportError):
    import_module("peft")

FORK = multiprocessing.get_context("fork")
OPTIONS = (
    *("-x", "-q", "--timeout=60", "--hypothesis-profile=any_failure"),
    # Of the plugins that are installed, two.
    *("--disable-plugin-autoload", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"),
    *("-p", "no:cacheprovider"),
    "--tb=native",  # pytest's own looks through all modules for the source
)
# Of tests that need ranks or a GPU, none; what was imported before pytest is not rewritten.
CHOICE = (
    *("-m", "not mpi and not gpu and not slow"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
LOG = "log"


class Outcome(NamedTuple):
    """Outcome of tests.

    Attributes:
        code: Exit code of pytest: 0 all passed, 1 some failed, others say that it did not work; the
            negative number of the signal that ended it if it crashed; None if it took too long.
        first_failed: The first test that failed; empty if none did.
        output: What pytest has printed.
    """

    code: int | None
    first_failed: str
    output: str


def run_tests(tests: Sequence[str], limit_s: float, finder: ChangedModule | None = None) -> Outcome:
    """Runs tests up to the first that fails, after `finder` has been put before all others."""
    gc.freeze()  # pytest collects garbage, which shall not look at all that was imported
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        receiver, sender = FORK.Pipe(duplex=False)
        child = FORK.Process(target=_run, args=(tests, finder, Path(folder), sender))
        child.start()
        sender.close()
        code, first_failed = _received(receiver, child, limit_s)
        log = Path(folder) / LOG
        return Outcome(code, first_failed, log.read_text() if log.exists() else "")


def _received(
    receiver: Connection, child: "multiprocessing.context.ForkProcess", limit_s: float
) -> tuple[int | None, str]:
    try:
        found: tuple[int | None, str] = receiver.recv() if receiver.poll(limit_s) else (None, "")
    except EOFError:  # it has ended without a word
        child.join(limit_s)
        found = (min(child.exitcode or 0, 0) or int(pytest.ExitCode.INTERNAL_ERROR), "")
    child.kill()
    child.join()
    return found


def _run(
    tests: Sequence[str], finder: ChangedModule | None, folder: Path, sender: Connection
) -> None:
    output = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if finder is not None:
        sys.meta_path.insert(0, finder)
        forget(finder.module)
    failures = _Failures()
    # Of several processes in one folder, each would remove what others leave behind.
    files = f"--basetemp={folder / 'files'}"
    code = pytest.main([*OPTIONS, *CHOICE, files, *tests], plugins=[failures])
    sender.send((int(code), failures.first))


class _Failures:
    """Notes the first test that failed."""

    def __init__(self) -> None:
        self.first = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid
