import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.examples.example_runs import record, write_run
from tests.report.test_time_use import hand_made

import dynapipe_hpc.report.comparison as summary
from dynapipe_hpc.report.comparison import compare, n_warm_up, summarise
from dynapipe_hpc.report.html import figures, write_page
from dynapipe_hpc.report.records import EvaluationRecord, IterationRecord, TaskLoss
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.table import MAX_TASKS, evaluation_rows, text_table


def test_the_table_reads_like_this(tmp_path: Path) -> None:
    fast = write_run(tmp_path / "dynamic", 12, waited_ms=0.25, loss=4.004)
    slow = write_run(tmp_path / "padding", 12, measured_ms=1250.0, padded_tokens=4000)
    table = text_table(compare([slow, fast]))
    assert [line.rstrip() for line in table.splitlines()] == [
        "                             padding  dynamic",
        "",
        "real tokens per second           800    2,000  1/s",
        "speed-up                        1.00     2.50  x padding",
        "padding efficiency              25.0     80.0  %",
        "micro-batches per iteration        4        4",
        "",
        "iteration time, measured       1,250      500  ms",
        "iteration time, predicted        450      450  ms",
        "  median error                  64.0     10.0  %",
        "  longest critical path         20.0     20.0  %",
        "peak activations, measured      4.00     4.00  MiB",
        "peak activations, predicted     3.00     3.00  MiB",
        "  median error                  25.0     25.0  %",
        "",
        "planning one iteration          20.0     20.0  ms",
        "waited for plans, total         0.00     3.00  ms",
        "  after the warm-up             0.00     2.25  ms",
        "plans ahead, median                2        2",
        "",
        "iterations                        12       12",
        "  of them steady                   9        9",
        "loss, first                   4.0000   4.0040",
        "loss, last                    4.0000   4.0040",
        "loss, largest difference           –  1.0e-03  relative to padding",
        "",
        "dynamic processes 2.50x the real tokens per second of padding, the other run",
    ]


def test_updates_that_were_left_out_are_counted_where_there_are_any(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "well", 3), write_run(tmp_path / "ill", 3, gradient_norm=math.nan)]
    (line,) = (line for line in text_table(compare(runs)).splitlines() if "skipped" in line)
    assert line.split() == ["skipped", "updates", "0", "3"]


def test_iterations_that_one_sample_lengthens_are_counted_and_the_worst_is_named(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "x", 2)
    for k, added_ms in ((2, 30.0), (3, 120.0)):
        run.add(record(k, outlier_sample=k, outlier_tokens=1000 * k, outlier_ms=added_ms))
    *_, lines = text_table(compare([run])).split("\n\n")
    assert lines.splitlines() == [
        "one sample alone lengthens iterations of:",
        "  x: in 2 of 4 iterations, by 75.0 ms on average; most by sample 3 (3,000 tokens) in "
        "iteration 3: 120 of 450 ms predicted",
    ]
    write_page([run], compare([run]), tmp_path / "r.html")
    assert "<li>x: in 2 of 4 iterations" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("kind", "predicted_ms", "told"),
    [
        ("profiled", 320.0, ["  x: predictions are off by 36.0 % (median)"]),
        ("profiled", 400.0, None),
        ("analytic", 100.0, None),
    ],
)
def test_measured_costs_that_did_not_foresee_a_run_are_told(
    tmp_path: Path, kind: str, predicted_ms: float, told: list[str] | None
) -> None:
    run = RunFolder.create(tmp_path / "x", f"[planner.cost]\nkind = '{kind}'\n", {})
    run.add(record(predicted_ms=predicted_ms))
    *_, last = text_table(compare([run])).split("\n\n")
    _, *lines = last.splitlines()
    assert ("did not foresee" in last) == (told is not None)
    assert told is None or lines == told
    write_page([run], compare([run]), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert ("off by 36.0 % (median)" in page) == (told is not None)


def unlike_runs(path: Path) -> list[RunFolder]:
    """Runs of other data, model and machine; they may differ in layers, planner and seed."""
    runs = []
    for name, size, ranks in (("a", 1024, 4), ("b", 512, 4), ("c", 512, 8)):
        config = (
            f"[data]\ndataset = '{path}/x.h5'\nmax_tokens = {size}\n"
            f"[model]\nn_layers = 4\nlayers_per_stage = [{size}]\n[training]\nseed = {size}\n"
            f"[planner.batch]\nrule = '{'dynamic' if name == 'a' else 'token_budget'}'\n"
            + ("[planner.search]\neffort = 0\n" if name == "c" else "")
        )
        runs.append(RunFolder.create(path / name, config, {"ranks": ranks, "host": name}))
        runs[-1].add(record())
        tasks = {"sorting": TaskLoss(1.0, 10 * ranks)}
        runs[-1].add_evaluation(EvaluationRecord(0, 1.0, 1.0, tasks))
    return runs


def test_what_differs_between_runs_is_said_below_the_table(tmp_path: Path) -> None:
    *_, unlike, chosen, _gain = text_table(compare(unlike_runs(tmp_path))).split("\n\n")
    assert unlike.splitlines() == [
        "warning: these runs differ in more than how they train:",
        "  data.max_tokens: 1024 in a; 512 in b, c",
        "  ranks: 4 in a, b; 8 in c",
        "  evaluated: 40 target tokens in a, b; 80 target tokens in c",
    ]
    assert chosen.splitlines() == [
        "these runs differ in:",
        "  model.layers_per_stage: [1024] in a; [512] in b, c",
        "  training.seed: 1024 in a; 512 in b, c",
        "  planner.batch.rule: dynamic in a; token_budget in b, c",
        "  planner.search.effort: 0 in c",
    ]


def run_of(path: Path, rule: str, measured_ms: float) -> RunFolder:
    folder = RunFolder.create(path, f"[planner.batch]\nrule = '{rule}'\n", {})
    folder.add(record(measured_ms=measured_ms))
    return folder


def gain(*runs: RunFolder) -> str:
    return str(compare(runs).gain)


RATE = "the real tokens per second of"


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (
            {"pad": ("naive_padding", 900), "ours": ("dynamic", 300), "tb": ("x", 330)},
            f"ours processes 1.10x {RATE} tb, the best of the other runs",
        ),
        (
            {"tb": ("x", 270), "ours": ("dynamic", 300)},
            f"ours processes 0.90x {RATE} tb, the other run",
        ),
        (
            {f"r{ms}": ("dynamic", ms) for ms in (400, 200, 300)},
            f"r200 processes 1.50x {RATE} r300, the best of the other runs",
        ),
    ],
)
def test_the_one_dynamic_run_or_the_fastest_is_compared_with_the_best_of_the_others(
    runs: dict[str, tuple[str, float]], expected: str, tmp_path: Path
) -> None:
    assert gain(*(run_of(tmp_path / name, *each) for name, each in runs.items())) == expected


def test_the_reason_is_where_time_per_token_differs(tmp_path: Path) -> None:
    other = hand_made(tmp_path / "tb", "token_budget", measured_ms=205.0, waited_ms=104.0)
    # As many tokens in half the time: what takes as long in both doubles per token.
    own = hand_made(tmp_path / "ours", "dynamic", real_tokens=500)
    # Of 205 ms: 104 less 8 ms of waiting for plans; 42 more of bubble, 17.5 of real work, 8.75 of
    # padding and of documents, 8 of transfers and of the update, 5 of recomputation, 3 of the rest.
    assert gain(other, own) == (
        "ours processes 0.98x the real tokens per second of tb, the other run: per token of "
        "one traced iteration it spends less on waiting for plans (47 %) and more on bubble "
        "(20 %), real work (9 %), padding (4 %), attention across documents (4 %), "
        "transfers (4 %), update (4 %), "
        "recomputation (2 %), rest (1 %); shares are of the time of tb"
    )


@pytest.mark.parametrize(
    ("n_iterations", "expected"), [(1, 0), (3, 0), (4, 1), (11, 2), (12, 3), (1000, 3)]
)
def test_warm_up_is_three_iterations_or_a_quarter(n_iterations: int, expected: int) -> None:
    assert n_warm_up(n_iterations) == expected


def test_the_warm_up_counts_only_in_the_totals() -> None:
    slow = [record(i, measured_ms=5000.0, waited_ms=70.0) for i in range(3)]
    steady = [
        record(i, measured_ms=5000.0 if i > 7 else 400.0, waited_ms=1.0) for i in range(3, 12)
    ]
    found = summarise("x", slow + steady)
    assert (found.totals.n_iterations, found.steady.n_iterations) == (12, 9)
    assert found.measured_ms == 400  # of nine, of which four are slow
    assert (found.totals.waited_ms, found.steady.waited_ms) == (219, 9)


MOST = 100
N_ITERATIONS = 1001


@pytest.fixture
def _few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "MAX_KEPT", MOST)


def long_run() -> Iterator[IterationRecord]:
    for k in range(N_ITERATIONS):
        yield record(k, waited_ms=float(k), measured_peak_bytes=10**9 if k == 777 else 1)


@pytest.mark.usefixtures("_few_are_kept")
def test_of_a_long_run_evenly_spaced_iterations_are_kept() -> None:
    found = summarise("x", long_run())
    assert [each.iteration for each in found.kept] == list(range(0, N_ITERATIONS, 16))
    assert (found.first.iteration, found.last.iteration) == (0, N_ITERATIONS - 1)


@pytest.mark.usefixtures("_few_are_kept")
def test_totals_are_of_all_iterations() -> None:
    found = summarise("x", long_run())
    assert (found.totals.n_iterations, found.steady.n_iterations) == (N_ITERATIONS, 998)
    assert found.totals.waited_ms == sum(range(N_ITERATIONS))
    assert found.steady.measured_peak_bytes == 10**9
    assert found.ends_s[-1] == pytest.approx(0.5 * (found.kept[-1].iteration + 1))


def evaluation(n_done: int, loss: float) -> EvaluationRecord:
    return EvaluationRecord(n_done, loss, 30.0, {"sorting": TaskLoss(loss, 10)})


def test_runs_with_and_without_evaluations_stand_side_by_side() -> None:
    run = [evaluation(0, 3.0), evaluation(5, 1.0), evaluation(10, 2.0)]
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
        run.add_evaluation(evaluation(n_done, 2.5 - n_done))
    comparison = compare([RunFolder.open(tmp_path / "run")])
    assert "evaluated loss, lowest 0.5000" in " ".join(text_table(comparison).split())
    assert "run, evaluated" in figures(comparison)[0][1]
    assert "run, evaluated" not in figures(comparison)[1][1]
