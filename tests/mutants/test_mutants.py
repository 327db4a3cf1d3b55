"""The list of mutants is up to date, and who runs it tells what is noticed from what is not."""

from pathlib import Path

import pytest
from tests.jobs.command_line import let_ranks_go
from tests.mutants.mutant import ROOT, Mutant, StaleMutantError
from tests.mutants.run_mutants import MUTANTS, noticed_by

LOSS = ("tests/training/test_objective.py",)
WEIGHT = "return {s.sample_id: 1 / total for s in samples}"
# Crashes where no process has been before, and is wrong from then on.
CRASH_ONCE = (
    "import os, pathlib; seen = pathlib.Path(os.environ['SEEN']); "
    "seen.exists() or (seen.touch(), os.abort()); " + WEIGHT.replace("1 /", "2 /")
)


@pytest.fixture(autouse=True)
def _no_ranks_are_shared() -> None:
    """Forked processes would take ranks that are ready for their own, and end them."""
    let_ranks_go()


def test_every_mutant_changes_the_code_in_a_place_that_is_there_once() -> None:
    for mutant in MUTANTS:
        original, changed = (
            compile(source, mutant.file, "exec")
            for source in (mutant.path.read_text(), mutant.changed_source())
        )
        assert changed != original, mutant


def test_every_mutant_is_another_one_and_names_tests_that_there_are() -> None:
    assert len(set(MUTANTS)) == len(MUTANTS) >= 40
    assert all(
        (ROOT / test.partition("::")[0]).is_file() for mutant in MUTANTS for test in mutant.tests
    )


def test_a_mutant_of_text_that_is_gone_is_stale() -> None:
    gone = Mutant("training/token_loader.py", "no such text", "", "a mistake", LOSS)
    with pytest.raises(
        StaleMutantError, match=r"training/token_loader.py has 'no such text' 0 times"
    ):
        gone.changed_source()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "said", "noticed"),
    [
        (WEIGHT.replace("1 /", "2 /"), "noticed by tests/training/test_objective.py::", True),
        (WEIGHT.replace("1 /", "1.0 /"), "NOT NOTICED", False),
        ("no python", "NOT TESTED, pytest ended with", False),
        (CRASH_ONCE, "crashed by signal 6, run once more", True),
        (f"__import__('os').abort(); {WEIGHT}", "NOT TESTED, pytest ended with -6", False),
    ],
)
def test_only_a_failing_test_notices_a_mutant(
    new: str,
    said: str,
    noticed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    test = noticed_by(Mutant("training/token_loader.py", WEIGHT, new, "a mistake", LOSS))
    assert bool(test) == noticed
    assert said in capsys.readouterr().out
