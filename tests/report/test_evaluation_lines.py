from pathlib import Path

from tests.examples.example_runs import write_run

from dynapipe_hpc.report.comparison import compare
from dynapipe_hpc.report.html import figures
from dynapipe_hpc.report.records import EvaluationRecord, TaskLoss
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.table import MAX_TASKS, evaluation_rows, text_table


def record(n_done: int, loss: float) -> EvaluationRecord:
    return EvaluationRecord(n_done, loss, 30.0, {"sorting": TaskLoss(loss, 10)})


def test_runs_with_and_without_evaluations_stand_side_by_side() -> None:
    run = [record(0, 3.0), record(5, 1.0), record(10, 2.0)]
    lines = {row.label: row.cells for row in evaluation_rows([run, []])}
    assert lines == {
        "evaluations": ("3", "–"),
        "  time of all": ("90", "–"),
        "evaluated loss, first": ("3.0000", "–"),
        "evaluated loss, last": ("2.0000", "–"),
        "evaluated loss, lowest": ("1.0000", "–"),
        "  after iterations": ("5", "–"),
        "perplexity, last": ("7.389", "–"),
        "  loss of sorting": ("2.0000", "–"),
    }
    assert list(evaluation_rows([[], []])) == []


def test_of_many_tasks_the_largest_are_shown() -> None:
    tasks = {f"task {i}": TaskLoss(1.0, 1 + i) for i in range(MAX_TASKS + 5)}
    run = [EvaluationRecord(0, 1.0, 1.0, tasks)]
    shown = [row.label for row in evaluation_rows([run]) if row.label.startswith("  loss of")]
    assert shown == [f"  loss of task {i}" for i in range(5, MAX_TASKS + 5)]


def test_a_report_shows_evaluations(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 4)
    for n_done in (0, 2):
        run.add_evaluation(record(n_done, 2.5 - n_done))
    comparison = compare([RunFolder.open(tmp_path / "run")])
    assert "evaluated loss, lowest 0.5000" in " ".join(text_table(comparison).split())
    assert "run, evaluated" in figures(comparison)[0][1]
    assert "run, evaluated" not in figures(comparison)[1][1]
