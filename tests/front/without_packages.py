"""Plugin of pytest: as if the packages in the variable WITHOUT_PACKAGES were not installed.

Prints the files that are skipped as a whole, a line each.
"""

import os
import sys

import pytest

SKIPPED = "skipped as a whole: "
sys.modules.update(dict.fromkeys(os.environ.get("WITHOUT_PACKAGES", "").split()))  # type: ignore[arg-type]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Notes a file that is skipped."""
    if report.skipped:
        sys.stdout.write(f"\n{SKIPPED}{report.nodeid}\n")
