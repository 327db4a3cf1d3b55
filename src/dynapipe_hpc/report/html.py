"""The report as one self-contained HTML file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import open_input
from dynapipe_hpc.data.output_file import FileKind, check_output
from dynapipe_hpc.report.comparison import (
    CHOICES,
    DISTURBED,
    MIXTURES,
    OUTLIERS,
    UNLIKE,
    Comparison,
    outliers,
    table,
)
from dynapipe_hpc.report.figures import figures
from dynapipe_hpc.report.gantt import Gantt, gantt
from dynapipe_hpc.report.mixture_file import MIXTURE
from dynapipe_hpc.report.page_template import page_template
from dynapipe_hpc.report.rank_time import Use
from dynapipe_hpc.report.run_folder import (
    EVALUATIONS,
    ITERATIONS,
    TRACE,
    RunFolder,
    write_atomically,
)
from dynapipe_hpc.report.time_use import TimeUse
from dynapipe_hpc.report.timeline import IterationTimeline

WIDE_ENOUGH = 6.0
"""Width from which a segment has a label, in percent of the longest bar."""


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A part of a bar.

    Attributes:
        use: What the time went to.
        css_class: Name of its colour.
        width: Width in percent of the longest bar.
        text: Label; empty if it does not fit.
        tip: Full description, for a tooltip.
    """

    use: Use
    css_class: str
    width: float
    text: str
    tip: str


@dataclass(frozen=True, slots=True)
class TimeBar:
    """The bar of the run with this index; an iteration takes `iteration_ms`."""

    index: int
    iteration_ms: float
    segments: tuple[BarSegment, ...]


def time_bars(times: Sequence[TimeUse | None]) -> list[TimeBar]:
    """The bars of all runs whose use of time is known.

    A bar is as long as the time per iteration of its run.
    """
    longest_ms = max((each.iteration_ms for each in times if each is not None), default=0.0)
    return [
        TimeBar(
            index,
            each.iteration_ms,
            tuple(_segment(each, use, longest_ms) for use in Use if each.times_ms[use] > 0),
        )
        for index, each in enumerate(times)
        if each is not None
    ]


def _segment(times: TimeUse, use: Use, longest_ms: float) -> BarSegment:
    time_ms, percent = times.times_ms[use], f"{100 * times.share(use):.1f} %"
    width = 100 * time_ms / longest_ms
    return BarSegment(
        use,
        _css_class(use),
        width,
        f"{100 * times.share(use):.0f} %" if width >= WIDE_ENOUGH else "",
        f"{use}: {time_ms:,.1f} ms per iteration, {percent}",
    )


def legend(bars: Sequence[TimeBar]) -> list[tuple[Use, str]]:
    """Every use in a bar, with the name of its colour."""
    shown = {segment.use for bar in bars for segment in bar.segments}
    return [(use, _css_class(use)) for use in Use if use in shown]


def _css_class(use: Use) -> str:
    return f"use-{use.name.lower().replace('_', '-')}"


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


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration on the page: timeline and chart of the run with this index."""

    index: int
    name: str
    timeline: IterationTimeline
    gantt: Gantt


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder on the page; `files` are names with their relative URLs."""

    name: str
    config: str
    machine: Sequence[tuple[str, str]]
    files: Sequence[tuple[str, str]]


def default_page(runs: Sequence[RunFolder]) -> Path:
    """The default page: report.html in the run's folder, or in the common parent of all runs."""
    if len(runs) == 1:
        return runs[0].path / "report.html"
    return Path(os.path.commonpath([run.path.resolve().parent for run in runs])) / "report.html"


def write_page(runs: Sequence[RunFolder], comparison: Comparison, page: Path) -> None:
    """Writes the report as an HTML page.

    Args:
        runs: Run folders, in the order of the comparison.
        comparison: Comparison of these runs.
        page: File to write.

    Raises:
        InputError: The file cannot be written, or exists and is no such page.
    """
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
        uses=(bars := time_bars(comparison.times)),
        legend=legend(bars),
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
        Iteration(index, comparison.names[index], timeline, gantt(timeline, until_ms))
        for index, timeline in shown.items()
    ]


def _run(run: RunFolder, name: str, page_folder: Path) -> Run:
    address = os.path.relpath(run.path.resolve(), page_folder.resolve())
    return Run(
        name=name,
        config=run.config,
        machine=[(key, str(value)) for key, value in run.machine.items()],
        files=[
            (file, quote(f"{address}/{file}"))
            for file in (
                "config.toml",
                "machine.json",
                MIXTURE,
                ITERATIONS,
                EVALUATIONS,
                TRACE,
                "plans",
            )
            if (run.path / file).exists()
        ],
    )
