"""Run folders and the files in them, and folders of something else."""

import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.example_runs import example_plans, example_traces, record, write_run

from dynapipe_hpc.data.dataset.mixture import Mixture, MixturePart
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.report.comparison import compare
from dynapipe_hpc.report.html import write_page
from dynapipe_hpc.report.lines_file import LinesFile
from dynapipe_hpc.report.records import EvaluationRecord, TaskLoss, log_line, metrics
from dynapipe_hpc.report.run_folder import (
    RunFolder,
    evaluations_file,
    iterations_file,
    not_a_run_error,
    read_mixture,
    timelines_file,
    write_mixture,
)
from dynapipe_hpc.report.table import text_table
from dynapipe_hpc.report.timeline import IterationTimeline, timeline_of
from dynapipe_hpc.report.work_shares import PassShares, WorkShares

UNFINISHED = f"{0xABC:016x}.partial"


def test_what_a_run_was_writing_when_it_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    begun = tmp_path / f".iterations.jsonl.{UNFINISHED}"
    begun.touch()
    RunFolder.create(tmp_path, "", {}).add(record())
    names = ("config.toml", "trace.json", "pairs.h5.abab.reference")
    others = [tmp_path / f".{name}.{UNFINISHED}" for name in names]
    plan = tmp_path / "plans" / f".0003.txt.{UNFINISHED}"
    plan.parent.mkdir()
    of_the_report = tmp_path / f".report.html.{UNFINISHED}"
    for path in (*others, plan, of_the_report):
        path.touch()
    RunFolder.resume(tmp_path, "", {}, 1)
    assert list(tmp_path.rglob("*.partial")) == [of_the_report]


def test_a_full_disk_is_a_run_error_that_names_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(RunError, match=r"iterations.jsonl: cannot be written: File too large"):
            folder.add(record(1))
        with pytest.raises(RunError, match=r"(trace.json|txt): cannot be written: File too large"):
            folder.add_trace(example_plans(1), example_traces(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_run_that_got_not_far_can_be_begun_again(tmp_path: Path) -> None:
    write_run(tmp_path / "x", 3, n_traced=3)
    with pytest.raises(InputError, match="already holds a run of 3 iterations"):
        RunFolder.create(tmp_path / "x", "", {}, n_repeatable=2)
    again = RunFolder.create(tmp_path / "x", "", {}, n_repeatable=3)
    assert list(again.records()) == []
    assert not (tmp_path / "x" / "trace.json").exists()


def test_plans_of_an_earlier_start_are_removed_with_its_iterations(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", 3, n_traced=3)
    (folder.path / "plans" / "notes.txt").write_text("by hand")
    RunFolder.resume(folder.path, "", {}, 2)
    names = sorted(path.name for path in (folder.path / "plans").iterdir())
    assert names == ["0000.txt", "0001.txt", "notes.txt"]
    RunFolder.create(folder.path, "", {}, n_repeatable=9)
    assert [path.name for path in (folder.path / "plans").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("n_done", [1, 2, 3])
def test_a_run_goes_on_behind_what_counts(tmp_path: Path, n_done: int) -> None:
    write_run(tmp_path / "whole", 3, n_traced=3)
    write_run(tmp_path / "x", 3, n_traced=3)
    RunFolder.resume(tmp_path / "x", "a = 2\n", {"host": "n2"}, n_done)
    found = RunFolder.open(tmp_path / "x")
    whole = RunFolder.open(tmp_path / "whole")
    assert list(found.records()) == list(whole.records())[:n_done]
    assert found.timelines() == whole.timelines()[:n_done]
    assert (found.config, found.machine) == ("a = 2\n", {"host": "n2"})


def folder(path: Path, *files: str) -> Path:
    path.mkdir()
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    return path


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "it is empty"),
        (("config.json", "model.safetensors", "tokenizer.json"), "it is a model of Hugging Face"),
        (("tokenizer.json",), "it is a tokenizer of Hugging Face"),
        (("adapter_config.json",), "it is adapters for peft"),
        (("checkpoint.json", "huggingface/config.json"), "it is a checkpoint; name the folder of"),
        (("config.toml",), "it is a configuration, but no run has begun here"),
        (("a.h5", "notes.txt"), "it holds datasets or cost tables"),
        (("notes.txt",), "it holds no file of a run"),
        (("a/machine.json", "b/machine.json", "c/x"), "it holds runs; name one: {0}/a, {0}/b"),
        (tuple(f"{k}/machine.json" for k in range(7)), "{0}/4, ... (7)"),
    ],
)
def test_a_folder_is_named_for_what_it_is(
    tmp_path: Path, files: tuple[str, ...], words: str
) -> None:
    path = folder(tmp_path / "x", *files)
    message = str(not_a_run_error(path, "iterations.jsonl: missing"))
    assert message.startswith(f"{path} is not a run folder (iterations.jsonl: missing): ")
    assert words.format(path) in message


def test_a_part_of_a_run_names_the_run(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", "machine.json", "checkpoints/000001/checkpoint.json")
    for part in ("checkpoints", "checkpoints/000001"):
        message = str(not_a_run_error(run / part, "x"))
        assert message.endswith(f"it is part of a run; name {run}")


def test_a_file_and_a_path_of_nothing_are_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "x", "a.h5")
    assert "it is a file; to see what" in str(not_a_run_error(path / "a.h5", "x"))
    assert "it does not exist; name" in str(not_a_run_error(path / "none", "x"))


def evaluation(n_done: int, loss: float = 2.0) -> EvaluationRecord:
    tasks = {'a, "b"': TaskLoss(1.0, 30), "ü\n": TaskLoss(3.0, 10)}
    return EvaluationRecord(n_done, loss, 12.5, tasks)


def timeline(iteration: int) -> IterationTimeline:
    shares = PassShares(WorkShares(0.9, 0.1, 0.0, 0.0), WorkShares(0.6, 0.1, 0.0, 0.3))
    return timeline_of(example_plans(iteration), example_traces(iteration), [[shares]] * 2)


EVALUATION = evaluations_file(Path()).line(evaluation(3)).strip()
TIMELINE = timelines_file(Path()).line(timeline(3)).strip()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    files: list[tuple[LinesFile[Any], Callable[[int], Any]]] = [
        (iterations_file(tmp_path), record),
        (evaluations_file(tmp_path), evaluation),
        (timelines_file(tmp_path), timeline),
    ]
    for file, make in files:
        assert list(file.records()) == []
        for k in (0, 2, 5):
            file.add(make(k))
        with file.path.open("a") as open_file:
            open_file.write('{"n_done": 30')  # its writer was killed
        assert list(file.records()) == [make(0), make(2), make(5)]
        file.cut(3)
        assert list(file.records()) == [make(0), make(2)]


@given(loss=st.floats(allow_nan=False, allow_infinity=False), planning_ms=st.floats(0, 1e9))
def test_no_digit_of_a_number_is_lost(
    tmp_path_factory: pytest.TempPathFactory, loss: float, planning_ms: float
) -> None:
    file = iterations_file(tmp_path_factory.mktemp("run"))
    file.add(record(loss=loss, planning_ms=planning_ms))
    assert list(file.records()) == [record(loss=loss, planning_ms=planning_ms)]


def test_numbers_that_json_does_not_know_are_null(tmp_path: Path) -> None:
    file = iterations_file(tmp_path)
    file.add(record(loss=math.nan, gradient_norm=-math.inf))
    line = json.loads(file.path.read_text(), parse_constant=pytest.fail)
    assert (line["loss"], line["gradient_norm"]) == (None, None)
    (again,) = file.records()
    assert math.isnan(again.loss)
    assert math.isnan(again.gradient_norm)


def test_a_resumed_run_continues_the_file_without_repeating_an_iteration(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "", {})
    for k in range(5):
        folder.add(record(k))
        folder.add_evaluation(evaluation(k))
    with (tmp_path / "iterations.jsonl").open("a") as file:
        file.write('{"time": "2026')  # killed while it wrote
    resumed = RunFolder.resume(tmp_path, "", {}, n_done=3)
    resumed.add(record(3))
    assert [each.iteration for each in resumed.records()] == [0, 1, 2, 3]
    # The evaluation of the checkpoint stays.
    assert [each.n_done for each in resumed.evaluations()] == [0, 1, 2, 3]


DAMAGED = [
    ("evaluations", EVALUATION.replace('"tokens":30', '"tokens":0'), "tasks"),
    ("evaluations", EVALUATION.replace('"n_done":3', '"n_done":"3"'), "n_done is '3'"),
    ("evaluations", EVALUATION.replace('"loss":1.0', '"loss":"1"'), "tasks"),
    ("evaluations", '{"n_done":3,"loss":1.0,"took_ms":1.0,"tasks":{}}', "tasks"),
    *(
        ("timelines", TIMELINE.replace('"start_ms":0.0', f'"start_ms":{wrong}'), "")
        for wrong in ('"x"', "NaN", "1e999", "9" * 400, "true")
    ),
    *(
        ("timelines", TIMELINE.replace('"iteration":3', f'"iteration":{wrong}'), "")
        for wrong in ('"x"', "0.5", "true", "-1")
    ),
    ("timelines", TIMELINE.replace('"kind":"forward"', '"kind":"nap"'), "planned.0.kind"),
    ("timelines", TIMELINE.replace('"microbatch":0', '"microbatch":"x"'), "planned.0.microbatch"),
    ("timelines", TIMELINE.replace("[3,16]", "[3]"), "planned.0.shape"),
    ("timelines", TIMELINE.replace("[0.9,0.1,", "[0.9,-0.1,"), ""),
    ("timelines", TIMELINE.replace("[0.9,0.1,", "[0.9,1.5,"), ""),
    ("timelines", TIMELINE.replace('"label":"F0"', '"label":7'), ""),
]


@pytest.mark.parametrize(("kind", "line", "told"), DAMAGED)
def test_a_damaged_line_is_named(tmp_path: Path, kind: str, line: str, told: str) -> None:
    assert line not in (EVALUATION, TIMELINE)
    folder = RunFolder.create(tmp_path, "", {})
    folder.add(record(0))
    folder.add_evaluation(evaluation(0))
    folder.add_trace(example_plans(0), example_traces(0))
    with (tmp_path / f"{kind}.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=rf"{kind}.jsonl:2: {told}.*; remove the line"):
        RunFolder.resume(tmp_path, "", {}, n_done=5)


def test_lines_of_two_runs_are_not_counted_as_one(tmp_path: Path) -> None:
    for k in (2, 1, 2):
        iterations_file(tmp_path).add(record(k))
    with pytest.raises(InputError, match=r":2: iteration 1 comes after 2: two runs wrote into"):
        list(iterations_file(tmp_path).records())
    for _ in range(2):
        evaluations_file(tmp_path).add(evaluation(10))
    with pytest.raises(InputError, match=r":2: n_done 10 comes after 10: two runs .*; keep"):
        list(evaluations_file(tmp_path).records())


def test_the_last_record_is_read_from_the_end(tmp_path: Path) -> None:
    file = iterations_file(tmp_path)
    assert file.last() is None
    for k in range(9):
        file.add(record(k))
    assert file.last() == record(8)
    assert file.n_lines() == 9


def test_perplexity_is_of_all_tokens() -> None:
    assert evaluation(0).tokens == 40
    assert evaluation(0).perplexity == pytest.approx(math.exp(1.5))
    assert EvaluationRecord(0, 1.0, 1.0, {"x": TaskLoss(1e6, 1)}).perplexity == math.inf


MIXTURE = Mixture(
    (MixturePart("chat", 20, 200, 0.75, None), MixturePart("<code>", 10, 300, 0.25, 2))
)


def test_a_mixture_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_mixture(tmp_path, MIXTURE)
    assert read_mixture(tmp_path) == MIXTURE
    write_mixture(tmp_path, None)
    assert read_mixture(tmp_path) is None


def test_the_report_counts_epochs_of_the_samples_that_were_drawn(tmp_path: Path) -> None:
    mixed, single = write_run(tmp_path / "mixed", 15), write_run(tmp_path / "single", 15)
    write_mixture(mixed.path, MIXTURE)
    comparison = compare([mixed, single])
    # Of 120 samples, the second dataset has no more than 20.
    expected = [
        "mixed: chat: 75.0 % of samples, 50.0 % of tokens; 5.00 epochs of 20 samples",
        "mixed: <code>: 25.0 % of samples, 50.0 % of tokens; "
        "2.00 of at most 2 epochs of 10 samples",
    ]
    assert list(comparison.mixtures) == expected
    assert "\n  ".join(["mixtures of datasets:", *expected]) in text_table(comparison)
    write_page([mixed, single], comparison, page := tmp_path / "page.html")
    assert "&lt;code&gt;: 25.0 % of samples" in page.read_text()
    assert 'href="mixed/mixture.json"' in page.read_text()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("{", "content: Invalid JSON"),
        ("[]", "content: Input should be an object"),
        ('{"parts": []}', "parts: Tuple should have at least 1 item"),
        (
            '{"parts": [{"name": "x", "n_samples": 0}]}',
            "parts.0.n_samples: Input should be greater",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: str, told: str) -> None:
    (tmp_path / "mixture.json").write_text(damage)
    with pytest.raises(InputError, match=f"mixture.json: {told}.*; restore it from a copy"):
        read_mixture(tmp_path)


def test_trackers_get_every_number_in_its_unit() -> None:
    assert metrics(record(2)) == {
        "tokens": 3000,
        "loss": 4.0,
        "learning_rate": 1e-3,
        "gradient_norm": 1.5,
        "seconds": 0.5,
        "tokens_per_s": 2000.0,
        "padding_efficiency": 0.8,
        "bubble_share": 0.25,
        "longest_trip_share": 0.2,
        "predicted_seconds": 0.45,
        "plans_ahead": 2,
        "peak_bytes": 4194304,
        "seconds_left": 19.5,
    }


def test_a_line_of_the_log() -> None:
    assert log_line(record(2)) == (
        "iteration 2: of 40, 20s left, loss 4.0000, lr 1.0e-3, norm 1.5, bubble 25%, "
        "critical path 20%, 3.00k tok, 2.00k/s"
    )
    assert "bubble -, " in log_line(record(last_pass_ms=0.0))


def test_what_asks_for_attention_has_a_line_of_its_own() -> None:
    outlier: dict[str, Any] = {"outlier_sample": 2, "outlier_tokens": 1600, "outlier_ms": 180.0}
    _, second, third = log_line(record(gradient_norm=math.inf, **outlier)).splitlines()
    assert second == "  sample 2 (1,600 tokens) adds 180 ms"
    assert third == "  update skipped: a gradient is not finite"
