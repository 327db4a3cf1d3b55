"""Whether every mistake in the list of mutants is noticed by a test that is named for it.

That these tests pass without a mistake is what `make test` says.

    python -m tests.mutants.run_mutants [WORDS]

With words, only mutants whose file or mistake has them.
"""

import argparse
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.mutants.changed_module import ChangedModule
from tests.mutants.loaded_once import load_once
from tests.mutants.mutant import Mutant
from tests.mutants.of_any_decoder import ANY_DECODER
from tests.mutants.of_architectures import ARCHITECTURES
from tests.mutants.of_baselines import BASELINES
from tests.mutants.of_configuration import CONFIGURATION
from tests.mutants.of_data import DATA
from tests.mutants.of_evaluation import EVALUATION
from tests.mutants.of_huggingface import HUGGINGFACE
from tests.mutants.of_model_folders import MODEL_FOLDERS
from tests.mutants.of_models import MODELS
from tests.mutants.of_online import ONLINE
from tests.mutants.of_plans import PLAN
from tests.mutants.of_reports import REPORTS
from tests.mutants.of_starter_files import STARTER_FILES
from tests.mutants.of_store import STORE
from tests.mutants.of_training import TRAINING
from tests.mutants.run_tests import FORK, Outcome, run_tests

MUTANTS = (
    *(*ARCHITECTURES, *MODELS, *DATA, *TRAINING, *EVALUATION, *ONLINE),
    *(*PLAN, *STORE, *BASELINES, *REPORTS, *HUGGINGFACE, *MODEL_FOLDERS),
    *(*STARTER_FILES, *CONFIGURATION, *ANY_DECODER),
)
PASSED, FAILED = 0, 1  # exit codes of pytest
LIMIT_S = 120.0
N_PROCESSES = 2


def main(words: str) -> int:
    """Prints a line per mutant; returns an exit code."""
    chosen = [mutant for mutant in MUTANTS if words in str(mutant)]
    started_s = time.monotonic()
    load_once()
    with ProcessPoolExecutor(N_PROCESSES, mp_context=FORK) as processes:
        n_noticed = sum(map(bool, processes.map(noticed_by, chosen)))
    took_s = time.monotonic() - started_s
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    sys.stdout.write(
        f"{n_noticed} of {len(chosen)} mutants noticed, in {took_s:.0f} s, of which processors "
        f"computed for {used_s:.0f} s\n"
    )
    return 0 if n_noticed == len(chosen) else 1


def noticed_by(mutant: Mutant) -> str:
    """The first test that fails, or nothing; prints it, or what happened instead.

    Tests that crash are run once more: a crash names no test, and code that is wrong, such as one
    that gives a kernel what it must not get, may crash now and fail then.
    """
    started_s = time.monotonic()
    outcome = _tested(mutant)
    if outcome.code is not None and outcome.code < 0:
        sys.stdout.write(f"{mutant}: crashed by signal {-outcome.code}, run once more\n")
        outcome = _tested(mutant)
    took_s = time.monotonic() - started_s
    said = {
        FAILED: f"noticed by {outcome.first_failed}",
        PASSED: "NOT NOTICED",
        None: "NOT NOTICED: the tests did not end",
    }.get(outcome.code, f"NOT TESTED, pytest ended with {outcome.code}:\n{outcome.output}")
    sys.stdout.write(f"{mutant}, {took_s:.1f} s: {said}\n")
    sys.stdout.flush()
    return outcome.first_failed if outcome.code == FAILED else ""


def _tested(mutant: Mutant) -> Outcome:
    finder = ChangedModule(mutant.module, mutant.path, mutant.changed_source())
    return run_tests(mutant.tests, LIMIT_S, finder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="?", default="", help="in the file's name or the mistake")
    sys.exit(main(parser.parse_args().words))
