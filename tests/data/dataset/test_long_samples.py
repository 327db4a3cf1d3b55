"""Samples longer than data.max_tokens, preference pairs, and descriptions of datasets."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.examples.tokenized import (
    PAIRS,
    Tokenized,
    TokenPair,
    sampler_of,
    write_pairs,
    write_samples,
)
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.config import DataConfig, LongSamples
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile, JoinedDatasets, verify_dataset
from dynapipe_hpc.data.dataset.long_samples import (
    OPENING_TOKENS,
    UsedTokens,
    describe_long,
    reader_of,
    trained_tokens_of,
    used_of,
    used_tokens,
)
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.text.show_dataset import describe_dataset
from dynapipe_hpc.experiment.load import to_toml

EOS = 9
SAMPLES = [
    ([1, 2, 3], [4, EOS], "short"),
    ([1, 2, 3, 4, 5, 6, 7], [8, EOS], "long input"),
    ([1, 2], [3, 4, 5, 6, 7, 8, 7, 6, EOS], "long target"),
]
LIMIT = 6
WHOLE = ([1, 2, 3], [4, EOS])
USED: dict[LongSamples, dict[int, tuple[list[int], list[int]]]] = {
    "cut_input": {0: WHOLE, 1: ([1, 2, 3, 4], [8, EOS])},
    "cut_input_end": {0: WHOLE, 1: ([1, 2, 3, 4], [8, EOS])},
    "cut_input_start": {0: WHOLE, 1: ([4, 5, 6, 7], [8, EOS])},
    "cut_targets": {0: WHOLE, 1: ([1, 2, 3, 4], [8, EOS]), 2: ([], [3, 4, 5, 6, 7, 8])},
    "drop": {0: WHOLE},
}


def config_of(choice: LongSamples, max_tokens: int = LIMIT) -> DataConfig:
    return DataConfig(
        dataset="x.h5", max_tokens=max_tokens, tokens_per_batch=100, long_samples=choice
    )


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "x.h5", SAMPLES)


@pytest.mark.parametrize("choice", USED)
def test_a_choice_says_what_is_read_of_long_samples(dataset: Path, choice: LongSamples) -> None:
    config = config_of(choice)
    with DatasetFile(dataset) as opened:
        sampler = sampler_of(opened, config)
        reader = reader_of(opened, config)
        found = {
            s.sample_id: tuple(side.tolist() for side in reader(s)[:2])
            for s in sampler.iteration(0)
        }
    assert found == USED[choice]


CHATS = [([1, 2, 3, 4, 5, 6, 7, 8], [8, EOS], "chat"), ([1, 2, 3, 4, 5, 6, 7], [8, EOS], "pair")]
WHOLE_CHAT = ([1, 2, 3], [EOS], "chat")
TURNS = [[(1, 3), (4, 5), (8, 10)], []]
"""Turns of the first: 2 3, and 5, and the target 8 9."""
CUT_TURNS = {
    8: ([4, 5, 6, 7, 8], "lose their first turns"),
    7: ([4, 5, 6, 7, 8], "lose their first turns"),
    6: ([6, 7, 8], "lose their first turns"),
    5: ([6, 7, 8], "lose their first turns"),
    4: ([7, 8], "lose the start of their input"),
}
"""Inputs of the conversation, by the longest sample."""


@pytest.mark.parametrize("max_tokens", CUT_TURNS)
@pytest.mark.parametrize("has_start", [True, False])
def test_a_long_conversation_loses_its_first_turns(
    tmp_path: Path, max_tokens: int, has_start: bool
) -> None:
    inputs, words = CUT_TURNS[max_tokens]
    config = config_of("cut_input", max_tokens)
    path = write_samples(tmp_path / "x.h5", CHATS, spans=TURNS, has_start=has_start)
    with DatasetFile(path) as opened:
        used = used_of(opened, config)
        reader = reader_of(opened, config)
        counts = [(int(used.inputs[i]), int(used.targets[i])) for i in range(2)]
        read = [[side.tolist() for side in reader(Sample(i, *counts[i]))[:2]] for i in range(2)]
        assert read[0] == [inputs, [8, EOS]]
        pair = CHATS[1][0][not has_start :]
        assert read[1] == [list(pair[: max_tokens - 2]), [8, EOS]]
        trained = trained_tokens_of(opened, config, predicts_inputs=True)
        mask = trained.mask(Sample(0, *counts[0]))
        expected = [token in (2, 3, 5) for token in inputs] + [True, True]
        assert mask.tolist() == expected
        (line,) = describe_long(opened, config)
        assert f": 1 {words}" in line
        assert "(data.long_samples = 'cut_input')" in line


def test_a_conversation_that_fits_loses_nothing(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5", [*CHATS, WHOLE_CHAT], spans=[*TURNS, [(1, 2), (3, 4)]])
    with DatasetFile(path) as opened:
        assert used_of(opened, config_of("cut_input", 6)).inputs[2] == 3


def test_long_samples_can_be_refused() -> None:
    config = config_of("refuse")
    assert used(config, [3, 2], [3, 1]).kept.tolist() == [0, 1]
    with pytest.raises(
        InputError,
        match=r"data.max_tokens = 6: 2 of 3 samples of 'x.h5' are longer, the first is sample 1 of "
        "9 tokens; raise it, or choose with data.long_samples",
    ):
        used(config, [3, 7, 2], [2, 2, 9])


def used(config: DataConfig, inputs: Sequence[int], targets: Sequence[int]) -> UsedTokens:
    return used_tokens(np.array(inputs), np.array(targets), config)


def test_a_plan_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, config = tmp_path / "long.h5", tmp_path / "config.toml"
    write_samples(dataset, [([1] * 20, [9], "whole"), ([1] * 40, [9], "long")])
    config.write_text(to_toml(tiny_experiment()).replace("none.h5", str(dataset)))
    line = "1 of 2 samples are longer than data.max_tokens (32): 1 lose the end of their input"
    assert main(["plan", str(config)]) == 0
    assert line in capsys.readouterr().out


def test_mixtures_read_both_answers(tmp_path: Path) -> None:
    write_pairs(tmp_path / "x.h5", [PAIRS[0], *PAIRS])
    with DatasetFile(tmp_path / "x.h5") as dataset:
        assert dataset.rejected_lengths.tolist() == [3, 3, 1, 2]
        assert dataset.read(Sample(3, 0, 1, 0, 2)).rejected.tolist() == [1, 9]
    verify_dataset(tmp_path / "x.h5")
    files = {"p": DatasetFile(tmp_path / "x.h5"), "q": DatasetFile(write_samples(tmp_path / "y"))}
    joined = JoinedDatasets(files)
    assert joined.header.has_pairs
    assert joined.rejected_lengths.tolist() == [3, 3, 1, 2, 0, 0, 0]
    assert joined.read(Sample(1, 0, 1, 0, 3)).rejected.tolist() == [5, 6, 9]
    joined.close()


LONG = [
    TokenPair([1, 2, 3, 4], [5, 9], [6, 7, 9]),
    TokenPair([1], [2, 3, 4, 5, 6, 9], [7, 9]),
    TokenPair([1], [2, 9], [3, 9]),
]
"""Of nine, nine and five tokens."""


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("cut_input", {0: (2, 2, 3), 2: (1, 2, 2)}),
        ("cut_input_end", {0: (2, 2, 3), 2: (1, 2, 2)}),
        ("cut_input_start", {0: (2, 2, 3), 2: (1, 2, 2)}),
        ("cut_targets", {0: (2, 2, 3), 1: (1, 4, 2), 2: (1, 2, 2)}),
        ("drop", {2: (1, 2, 2)}),
    ],
)
def test_a_pair_is_cut_or_left_out_as_one(
    tmp_path: Path, choice: LongSamples, expected: dict[int, tuple[int, int, int]]
) -> None:
    with DatasetFile(write_pairs(tmp_path / "x.h5", LONG)) as dataset:
        used = used_of(dataset, config_of(choice, 7))
        found = {s.sample_id: s for s in used.samples(used.kept, dataset.task_ids)}
        assert found == {i: Sample(i, p, c, rejected_tokens=r) for i, (p, c, r) in expected.items()}
        # A prompt loses its start, but for who asks for the other end.
        inputs, *_ = reader_of(dataset, config_of(choice, 7))(Sample(0, 2, 2))
        keeps_start = choice in ("cut_input_end", "drop")
        assert inputs.tolist() == ([1, 2] if keeps_start else [3, 4])


def test_both_answers_are_cut_to_halves_at_most(tmp_path: Path) -> None:
    pairs = [TokenPair([1], [2] * 9, [3] * 8), TokenPair([1], [2] * 2, [3] * 9)]
    with DatasetFile(write_pairs(tmp_path / "x.h5", pairs)) as dataset:
        used = used_of(dataset, config_of("cut_targets", 7))
        sides = (used.inputs, used.targets, used.rejected)
        assert [each.tolist() for each in sides] == [[1, 1], [3, 2], [3, 4]]
        with pytest.raises(InputError, match=r"all 2 samples of 'x\.h5' are longer"):
            used_of(dataset, config_of("cut_targets", 1))


def test_tokens_that_open_the_turn_of_the_assistant_are_kept(tmp_path: Path) -> None:
    prompt = [*range(1, 9)] * 4
    pairs = [TokenPair(prompt, [9] * n, [8] * 40) for n in (40, 43, 45, 90)]
    with DatasetFile(write_pairs(tmp_path / "x.h5", pairs)) as dataset:
        kept_of: dict[LongSamples, list[int]] = {"cut_input": [0, 1], "cut_targets": [0, 1, 2, 3]}
        for choice, kept in kept_of.items():
            config = config_of(choice, 100)
            used = used_of(dataset, config)
            assert used.kept.tolist() == kept
            assert used.inputs[kept].tolist() == [20, 17, 16, 16][: len(kept)]
            for i in kept:
                inputs, *_ = reader_of(dataset, config)(Sample(i, int(used.inputs[i]), 1))
                assert inputs[-OPENING_TOKENS:].tolist() == prompt[-OPENING_TOKENS:]
        assert used.targets.tolist() == [40, 43, 44, 44]
        assert used.rejected.tolist() == [40] * 4


def test_the_description_tells_prompts_from_answers(tmp_path: Path) -> None:
    lines = describe_dataset(write_pairs(tmp_path / "x.h5")).splitlines()
    assert lines[1] == "pairs      3 of 2 tasks"
    assert lines[2] == ("tokens     19 (4 of prompts, 9 of chosen answers, 6 of rejected answers)")
    assert lines[8].split() == ["all", "tasks", "3", "19", "7", "8", "8", "8"]


def test_counts_percentiles_and_histogram_are_shown(tmp_path: Path) -> None:
    samples: list[Tokenized] = [
        *[([1] * n, [2, 9], "short") for n in range(1, 101)],
        *[([1] * 1000, [9], "long") for _ in range(2)],
    ]
    path = write_samples(tmp_path / "x.h5", samples)
    with DatasetFile(path) as dataset:
        created = dataset.header.created
    assert describe_dataset(path).splitlines() == [
        f"{path}: dataset of {created}",
        "samples    102 of 2 tasks",
        "tokens     7,252 (7,050 of inputs, 202 of targets)",
        "tokenizer  digits, sha256 abababababab",
        "vocabulary 10 tokens, end of sequence 9, start 9",
        "sources    a.jsonl, b.jsonl",
        "",
        "task           samples          tokens      p50      p90      p99  longest",
        "all tasks          102           7,252       53       94    1,001    1,001",
        "long                 2           2,002    1,001    1,001    1,001    1,001",
        "short              100           5,250       52       92      101      102",
        "",
        "           tokens      samples",
        "       2-3                   1 #",
        "       4-7                   4 #####",
        "       8-15                  8 ##########",
        "      16-31                 16 #####################",
        "      32-63                 32 #########################################",
        "      64-127                39 ##################################################",
        "     128-255                 0",
        "     256-511                 0",
        "     512-1,023               2 ###",
    ]
