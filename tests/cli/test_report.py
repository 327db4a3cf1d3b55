"""`dynapipe-hpc report` as it is called."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.example_runs import write_run

from dynapipe_hpc.cli.main import main


def call(*arguments: str | Path) -> int:
    return main(["report", *map(str, arguments)])


def test_the_table_is_printed_and_the_page_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dynamic", "packing"):
        write_run(tmp_path / name, 4, n_traced=1)
    assert call(tmp_path / "dynamic", tmp_path / "packing", "--baseline", "packing") == 0
    printed = capsys.readouterr().out
    assert "x packing" in printed
    assert printed.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()


def test_the_page_goes_where_it_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "x", 1)
    assert call(tmp_path / "x", "-o", tmp_path / "pages" / "p.html") == 0
    assert (tmp_path / "pages" / "p.html").exists()


def test_an_earlier_report_among_the_runs_is_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "x", 1)
    write_run(tmp_path / "y", 1)
    call(tmp_path / "x", tmp_path / "y")
    assert call(*sorted(tmp_path.iterdir())) == 0


@pytest.mark.parametrize("heavy", ["torch", "mpi4py", "matplotlib"])
def test_writing_run_folders_loads_nothing_heavy(heavy: str) -> None:
    code = (
        "import sys, dynapipe_hpc.report.run_folder, dynapipe_hpc.cli.run_verbs; "
        f"sys.exit({heavy!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
