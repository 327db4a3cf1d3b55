"""Samples longer than data.max_tokens are used as configured, and counted where they matter."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.examples.tokenized import sampler_of, write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.config import DataConfig, LongSamples
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.long_samples import (
    UsedTokens,
    describe_long,
    reader_of,
    trained_tokens_of,
    used_of,
    used_tokens,
)
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
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


def test_inspect_and_plan_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, config = tmp_path / "long.h5", tmp_path / "config.toml"
    write_samples(dataset, [([1] * 20, [9], "whole"), ([1] * 40, [9], "long")])
    config.write_text(to_toml(tiny_experiment()).replace("none.h5", str(dataset)))
    line = "1 of 2 samples are longer than data.max_tokens (32): 1 lose the end of their input"
    assert main(["inspect", str(dataset), "--config", str(config)]) == 0
    assert line in capsys.readouterr().out
    assert main(["plan", str(config)]) == 0
    assert line in capsys.readouterr().out
