"""The report as one self-contained HTML file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import open_input
from dynapipe_hpc.data.output_file import FileKind, check_output
from dynapipe_hpc.report.comparison import Comparison
from dynapipe_hpc.report.drawing import MAX_RANKS, measured_svg
from dynapipe_hpc.report.figures import figures
from dynapipe_hpc.report.plan_page import page_template
from dynapipe_hpc.report.run_folder import (
    EVALUATIONS,
    ITERATIONS,
    MIXTURE,
    TRACE,
    RunFolder,
    write_atomically,
)
from dynapipe_hpc.report.table import (
    CHOICES,
    DISTURBED,
    MIXTURES,
    OUTLIERS,
    UNLIKE,
    outliers,
    table,
)
from dynapipe_hpc.report.time_use import Use
from dynapipe_hpc.report.timeline import IterationTimeline

_START, _TITLE_END = b"<!doctype html>", b"dynapipe-hpc report</title>"
_HEAD_BYTES = 1 << 20


def _is_page(path: Path) -> bool:
    try:
        with open_input(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(_START) and _TITLE_END in head


PAGE = FileKind("a page of dynapipe-hpc report", _is_page)


class Iteration(NamedTuple):
    """One iteration on the page: timeline and drawing of the run with this name."""

    name: str
    timeline: IterationTimeline
    svg: str


def default_page(runs: Sequence[RunFolder]) -> Path:
    """The default page: report.html in the run's folder, or in the common parent of all runs."""
    if len(runs) == 1:
        return runs[0].path / "report.html"
    return Path(os.path.commonpath([run.path.resolve().parent for run in runs])) / "report.html"


def write_page(runs: Sequence[RunFolder], comparison: Comparison, page: Path) -> None:
    """Writes the report as an HTML page; runs are in the order of the comparison."""
    if page.exists():
        check_output(page, [], PAGE, force=True)  # it can be made again
    text = _render(runs, comparison, page)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page, text)
    except OSError as error:
        raise InputError(
            f"cannot write the report {page}: {error.strerror}; name another file with -o"
        ) from error


def _render(runs: Sequence[RunFolder], comparison: Comparison, page: Path) -> str:
    uses = [(index, times) for index, times in enumerate(comparison.times) if times is not None]
    longest_ms = max((times.iteration_ms for _, times in uses), default=0.0)
    return page_template("page.html").render(
        comparison=comparison,
        unlike=UNLIKE,
        chosen=CHOICES,
        mixed=MIXTURES,
        lengthened=OUTLIERS,
        unforeseen=DISTURBED,
        outliers=outliers(comparison),
        groups=table(comparison),
        figures=figures(comparison),
        iterations=_iterations(comparison),
        uses=uses,
        longest_ms=longest_ms,
        used=[use for use in Use if any(times.times_ms[use] > 0 for _, times in uses)],
        max_ranks=MAX_RANKS,
        runs=[
            _run(run, name, page.parent) for run, name in zip(runs, comparison.names, strict=True)
        ],
    )


def _iterations(comparison: Comparison) -> list[Iteration]:
    """The last iteration traced in every run that has traces; if none, the last of each run.

    All charts have one time scale.
    """
    traced = [set(timelines) for timelines in comparison.timelines if timelines]
    common = set.intersection(*traced) if traced else set()
    shown = {
        index: timelines[max(common or timelines)]
        for index, timelines in enumerate(comparison.timelines)
        if timelines
    }
    until_ms = max((max(t.planned_ms, t.measured_ms) for t in shown.values()), default=0.0)
    return [
        Iteration(name, timeline, measured_svg(timeline, until_ms, name))
        for name, timeline in ((comparison.names[index], each) for index, each in shown.items())
    ]


def _run(run: RunFolder, name: str, page_folder: Path) -> dict[str, object]:
    """A run folder for the page; files are names with their relative URLs."""
    address = os.path.relpath(run.path.resolve(), page_folder.resolve())
    files = ("config.toml", "machine.json", MIXTURE, ITERATIONS, EVALUATIONS, TRACE, "plans")
    return {
        "name": name,
        "config": run.config,
        "machine": run.machine.items(),
        "files": [(f, quote(f"{address}/{f}")) for f in files if (run.path / f).exists()],
    }
