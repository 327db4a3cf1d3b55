"""The tokens that end trained turns: what a dataset records of them."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.examples.chat_tokenizer import SPECIAL, folder_of
from tests.examples.chats import Record, chat
from tests.examples.tokenized import SAMPLES, header, write_samples

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter, join_datasets
from dynapipe_hpc.data.dataset.describe_dataset import describe_dataset
from dynapipe_hpc.data.dataset.joined_datasets import JoinedDatasets
from dynapipe_hpc.data.text.chat_turns import Turns
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import recipe_of
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import load_tokenizer
from dynapipe_hpc.data.token_block import TokenBlock

HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
TAIL = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = HEAD + "{{ m.content }}<|im_end|>\n" + TAIL
TWO_ENDS = (
    HEAD
    + "{{ m.content }}{% if m.tool_calls %}call<|eot_id|>{% else %}<|im_end|>{% endif %}\n"
    + TAIL
)
IN_BLOCKS = (
    HEAD
    + "{% if m.role == 'assistant' %}"
    + "{% generation %}think<|end_header_id|>{% endgeneration %}-"
    + "{% generation %}{{ m.content }}<|im_end|>\n{% endgeneration %}"
    + "{% else %}{{ m.content }}<|im_end|>\n{% endif %}"
    + TAIL
)
UNTRAINED_END = HEAD + "{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>\n" + TAIL


def end_tokens(
    folder: Path, template: str, records: Sequence[Record], turns: Turns = Turns.EACH
) -> list[str]:
    """Names of the tokens that a dataset records."""
    files = read_tokenizer([folder_of(folder / "tokenizer", template)])
    recipe = recipe_of(load_tokenizer(files), files, RecordFormat.MESSAGES, turns=turns)
    (folder / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    out = folder / "out.h5"
    preprocess([folder / "in.jsonl"], out, recipe, PreprocessOptions(n_workers=1))
    with DatasetFile(out) as dataset:
        return [SPECIAL[token_id] for token_id in dataset.header.turn_end_ids]


@pytest.mark.parametrize("turns", Turns)
def test_the_token_that_ends_trained_turns_is_recorded(tmp_path: Path, turns: Turns) -> None:
    records = [chat("hi", "yes", "and", "no"), chat("hi", "yes", "thanks")]
    assert end_tokens(tmp_path, CHATML, records, turns) == ["<|im_end|>"]


def test_turns_that_call_tools_may_end_otherwise(tmp_path: Path) -> None:
    record = chat("hi", "", "sun", "yes")
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    record["messages"][1]["tool_calls"] = [call]
    assert end_tokens(tmp_path, TWO_ENDS, [record]) == ["<|im_end|>", "<|eot_id|>"]


def test_a_token_within_a_turn_does_not_end_it(tmp_path: Path) -> None:
    for turns in Turns:
        (tmp_path / turns).mkdir()
        found = end_tokens(tmp_path / turns, IN_BLOCKS, [chat("hi", "yes", "and", "no")], turns)
        assert found == ["<|im_end|>"]


def test_an_end_that_is_not_trained_is_not_recorded(tmp_path: Path) -> None:
    assert end_tokens(tmp_path, UNTRAINED_END, [chat("hi", "yes")]) == []


def test_an_end_of_turns_that_are_only_read_is_not_recorded(tmp_path: Path) -> None:
    record = chat("hi", "", "sun", "yes")
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    record["messages"][1] |= {"tool_calls": [call], "weight": 0}
    assert end_tokens(tmp_path, TWO_ENDS, [record]) == ["<|im_end|>"]


def with_ends(path: Path, *ids: int) -> Path:
    with DatasetWriter.create(path, header()) as writer:
        for token_id in ids:
            writer.append(TokenBlock.from_samples(SAMPLES, 10, turn_end_ids={token_id}))
    return path


def test_parts_and_mixtures_have_the_ends_of_all(tmp_path: Path) -> None:
    parts = [with_ends(tmp_path / "0.h5", 7, 3), with_ends(tmp_path / "1.h5", 5)]
    join_datasets(tmp_path / "x.h5", header(), parts)
    pairs = write_samples(tmp_path / "pairs.h5")
    whole, other = DatasetFile(tmp_path / "x.h5"), DatasetFile(pairs)
    assert whole.header.turn_end_ids == (3, 5, 7)
    assert (whole.end_ids, other.end_ids) == ((3, 5, 7), (9,))
    joined = JoinedDatasets({"a": whole, "b": other})
    assert joined.end_ids == (3, 5, 7, 9)
    joined.close()


def test_the_summary_of_a_dataset_shows_what_ends_its_turns(tmp_path: Path) -> None:
    assert "end of sequence 9, of turns 3, 5, start 9" in describe_dataset(
        with_ends(tmp_path / "x.h5", 5, 3)
    )
    assert "of turns" not in describe_dataset(write_samples(tmp_path / "pairs.h5"))
