"""The tests of one GPU, `tests/gpu`."""

import sys
from collections import Counter

import pytest

from gpu.finding import lacks, note


class Reports:
    """Counts what became of tests, and reports each that failed at once."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            message = str(report.longrepr).splitlines()[-1]
            note(report.nodeid.partition("::")[2], message, "passes", False)


def main() -> None:
    reports = Reports()
    code = pytest.main(["tests/gpu", "-m", "gpu", "-q", "-p", "no:cacheprovider"], [reports])
    counts = reports.counts
    if counts["skipped"] and not counts["passed"] and not counts["failed"]:
        lacks("a CUDA device")
    told = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
    note("tests/gpu", told, "all pass", code == 0 and set(counts) == {"passed"})
    sys.exit(code)


if __name__ == "__main__":
    main()
