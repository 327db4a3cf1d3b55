"""Evaluations of several runs, side by side."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dynapipe_hpc.report.evaluation_record import EvaluationRecord

MAX_TASKS = 20
Evaluations = Sequence[EvaluationRecord]
Line = tuple[str, str, tuple[str, ...]]
"""Label, unit, and a cell per run."""


def evaluation_lines(runs: Sequence[Evaluations], nothing: str) -> Iterator[Line]:
    """Lines of a table about evaluations, ascending; none if no run has any.

    The losses of tasks are those of the last evaluation; of many tasks, those with most tokens.
    """
    if not any(runs):
        return

    def line(label: str, unit: str, cell: Callable[[Evaluations], str]) -> Line:
        return label, unit, tuple(cell(run) if run else nothing for run in runs)

    yield line("evaluations", "", lambda run: f"{len(run):,}")
    yield line("  time of all", "ms", lambda run: f"{sum(r.took_ms for r in run):,.0f}")
    yield line("evaluated loss, first", "", lambda run: f"{run[0].loss:.4f}")
    yield line("evaluated loss, last", "", lambda run: f"{run[-1].loss:.4f}")
    yield line("evaluated loss, lowest", "", lambda run: f"{lowest(run).loss:.4f}")
    yield line("  after iterations", "", lambda run: f"{lowest(run).n_done:,}")
    yield line("perplexity, last", "", partial(_perplexity, nothing))
    if any(run and run[-1].preferences for run in runs):
        yield line("accuracy of preferences, last", "%", partial(_accuracy, nothing))
        yield line("margin of rewards, last", "", partial(_margin, nothing))
    for name in _largest_tasks([run[-1] for run in runs if run]):
        yield line(f"  loss of {name}", "", partial(_of_task, name, nothing))


def lowest(run: Evaluations) -> EvaluationRecord:
    """The evaluation with the lowest loss, the first of equals; a loss that is NaN is not."""
    return min(run, key=lambda record: (record.loss != record.loss, record.loss))


def _perplexity(nothing: str, run: Evaluations) -> str:
    return nothing if run[-1].preferences else f"{run[-1].perplexity:,.4g}"


def _accuracy(nothing: str, run: Evaluations) -> str:
    means = run[-1].preferences
    return f"{100 * means.accuracy:.1f}" if means else nothing


def _margin(nothing: str, run: Evaluations) -> str:
    means = run[-1].preferences
    return f"{means.margin:.4f}" if means else nothing


def _of_task(name: str, nothing: str, run: Evaluations) -> str:
    task = run[-1].tasks.get(name)
    return nothing if task is None else f"{task.loss:.4f}"


def _largest_tasks(last: Evaluations) -> list[str]:
    tokens = Counter[str]()
    for record in last:
        tokens.update({name: task.tokens for name, task in record.tasks.items()})
    largest = {name for name, _ in tokens.most_common(MAX_TASKS)}
    return [name for name in tokens if name in largest]
