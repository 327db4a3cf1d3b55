"""Arguments that make no sense, and outputs that cannot be."""

from pathlib import Path

import pytest
from tests.bad_input.good import PLAN, PLAN_LENGTHS
from tests.bad_input.worker import Worker, assert_refused

# What argparse says begins with how to use the verb.
MISUSE: list[tuple[tuple[str, ...], str]] = [
    ((), "VERB"),
    (("nonsense",), "invalid choice: 'nonsense'"),
    (("plan",), "required: CONFIG"),
    (("plan", "config.toml", "more.toml"), "unrecognized arguments: more.toml"),
    (("plan", "config.toml", "--iteration"), "--iteration: expected one argument"),
    (("plan", "config.toml", "--nonsense"), "unrecognized arguments: --nonsense"),
    (("preprocess", "in.jsonl"), "required: OUT.h5"),
    (
        ("preprocess", "in.jsonl", "out.h5", "--workers", "all"),
        "--workers: invalid int value: 'all'",
    ),
    (("run", "config.toml"), "required: -o/--output"),
    (("run", "config.toml", "-o", ""), "is empty; name a file or folder"),
    (("demo-corpus", "x.jsonl", "--samples", "0"), "argument --samples: 0: must be at least 1"),
]


@pytest.mark.parametrize(("arguments", "words"), MISUSE)
def test_misuse_is_explained(
    worker: Worker, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert_refused(worker, folder, arguments, words, start="usage: dynapipe-hpc ")


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("preprocess", "none.jsonl", "out.h5"), "none.jsonl: .*[Nn]o such file"),
    (("preprocess", "in.jsonl", "in.jsonl"), "in.jsonl: is both an input and the output"),
    (("preprocess", "in.jsonl", "./in.jsonl", "--force"), "in.jsonl: is both an input"),
    (("preprocess", "in.jsonl", "data.h5"), "data.h5: already exists"),
    (("preprocess", "in.jsonl", "run"), "run: is a folder"),
    (("preprocess", "in.jsonl", "none/out.h5"), "its folder 'none' does not exist"),
    (("preprocess", "in.jsonl", "in.jsonl/out.h5"), "its folder 'in.jsonl' "),
    (("preprocess", "in.jsonl", "/dev/null"), "/dev/null: is not a regular file"),
    (("preprocess", "in.jsonl", "x" * 300 + ".h5"), "xxx.*its name exceeds 160 bytes"),
    (("preprocess", "loop", "out.h5"), "loop: "),
    (("preprocess", "in.jsonl", "in.jsonl", "loop/out.h5"), "loop"),
    (("inspect", "none.h5"), "none.h5: .*[Nn]o such file"),
    (("inspect", "run"), "run: is a folder"),
    (("inspect", "in.jsonl"), "in.jsonl: not a complete HDF5 file"),
    (("inspect", ""), ": is a folder"),
    (("inspect", "run", "--show", "2", "--verify"), "run: is a folder, but --verify, --show"),
    (("plan", "none.toml"), "none.toml: cannot be read: No such file"),
    (("plan", ""), ": cannot be read: is a folder"),
    (("plan", "data.h5"), "data.h5: (not UTF-8|is larger than)"),
    ((*PLAN, "--iteration", "1000000000000"), "--iteration 1000000000000: "),
    ((*PLAN, "--lengths", "lengths.json"), "give both or neither"),
    ((*PLAN, "--json", "out.json"), "give both or neither"),
    ((*PLAN_LENGTHS, "--explain"), "cannot be used with --lengths"),
    ((*PLAN, "--svg", "no/folder/plan.svg"), "its folder 'no/folder' does not exist"),
    ((*PLAN_LENGTHS[:-1], "lengths.json"), "lengths.json: is both an input and the output"),
    ((*PLAN_LENGTHS[:-1], "in.jsonl"), "in.jsonl: already exists"),
    ((*PLAN_LENGTHS[:-1], "run"), "run: is a folder"),
    ((*PLAN, "--profile", "none.h5"), "none.h5: not a cost table: No such file"),
    ((*PLAN, "--profile", "data.h5"), "data.h5: is a dynapipe-hpc dataset, not a cost table"),
    ((*PLAN, "--profile", "in.jsonl"), "in.jsonl: not a cost table"),
    (("profile", "config.toml", "-o", "table.h5"), "table.h5: already exists"),
    (("profile", "config.toml", "-o", "run"), "run: is a folder"),
    (("demo-corpus", "in.jsonl"), "in.jsonl: already exists; name another output, or replace"),
    ((*PLAN, "--svg", "in.jsonl"), "in.jsonl: already exists"),
    (("grid-search", "config.toml", "-o", "in.jsonl"), "in.jsonl: already exists"),
    (("report", "run", "-o", "in.jsonl"), "in.jsonl: already exists"),
    (("demo-corpus", "x.jsonl", "--chat", "--preferences"), "are two kinds of samples; leave one"),
    (("profile", "config.toml", "-o", "config.toml", "--force"), "is both an input and the output"),
    (("slurm-scripts", "in.jsonl"), "in.jsonl: is not a folder; name a new or an existing one"),
    (("slurm-scripts", "none/new"), "its folder 'none' does not exist; create it first"),
    (("report", "none"), "none is not a run folder"),
    (("report", "run", "run", "none"), "none is not a run folder"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_what_cannot_be_is_explained(
    worker: Worker, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    (folder / "loop").symlink_to("loop")
    assert_refused(worker, folder, arguments, words)


RUN = ("run", "config.toml", "--set", "cluster.n_stages=1", "-o", "new")
SPLITS = ("--set", "planner.schedule.split_backward=true")
PROFILE = ("profile", "config.toml", "--set", "cluster.n_stages=1", "-o", "new.h5")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "config.toml", "-o", "new"), "needs 2 ranks .* but this job has 1"),
        ((*RUN[:-1], "run"), "run already holds a run"),
        ((*RUN[:-1], "in.jsonl"), "in.jsonl: .*choose another folder"),
        ((*RUN[:-1], "in.jsonl/new"), "in.jsonl/new: .*choose another folder"),
        ((*RUN[:-1], "."), "holds files that no run wrote"),
        ((*RUN, "--set", "data.dataset=none.h5"), "none.h5: not a dataset: No such file"),
        (
            (*RUN, *SPLITS, "--set", "cluster.sequence_parallel=true"),
            "are both true: the gradients",
        ),
        ((*RUN, "--set", "training.device=cuda"), "rank 0 sees no GPU"),
        ((*PROFILE[:-1], "none/new.h5"), "its folder 'none' does not exist"),
        ((*PROFILE, "--microbatch-tokens", "0"), "--microbatch-tokens is 0"),
    ],
)
def test_a_run_that_cannot_start_is_explained(
    worker: Worker, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert_refused(worker, folder, arguments, words)
