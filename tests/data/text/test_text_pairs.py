"""Pairs of texts, whose tokens are those of both as one text, as the library splits it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.tokenized import sides_of
from tokenizers import processors
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace, Sequence
from tokenizers.pre_tokenizers import ByteLevel

from dynapipe_hpc.data.text.open_lines import Lines
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.tokenize_lines import tokenize_lines
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, load_tokenizer

PIECES = ("?", "<s>", "</s>", "▁", "a", "b", ":", "▁a", ":b", "▁▁")
MERGES = [("▁", "a"), (":", "b"), ("▁", "▁")]
END = PIECES.index("</s>")
LLAMA = Sequence([Prepend("▁"), Replace(" ", "▁")])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that puts a blank before text, as Llama 2's does."""
    model = tokenizers.Tokenizer(BPE({piece: n for n, piece in enumerate(PIECES)}, MERGES))
    model.normalizer = LLAMA
    model.add_special_tokens(["<s>", "</s>"])
    path = tmp_path_factory.mktemp("t") / "tokenizer.json"
    model.save(str(path))
    return path


def whole(file: Path, text: str) -> list[int]:
    ids: list[int] = tokenizers.Tokenizer.from_file(str(file)).encode(text).ids
    return ids


def samples(
    record: object, tokenizer: Tokenizer, record_format: RecordFormat
) -> Iterator[list[int]]:
    """Tokens of the input, of the target and, of a preference pair, of the rejected answer."""
    lines = Lines(Path("in.jsonl"), 1, [json.dumps(record).encode()])
    made = tokenize_lines(lines, Recipe(tokenizer, record_format))
    assert not made.bad
    [sides] = sides_of(made.block)
    yield from sides


TEXT = st.text("ab :", max_size=6)
ANSWER = st.text("ab :", min_size=1, max_size=6)


@given(inputs=TEXT, targets=ANSWER)
def test_a_pair_is_split_as_one_text(file: Path, inputs: str, targets: str) -> None:
    tokenizer = load_tokenizer(read_tokenizer(file))
    pair = {"inputs": inputs, "targets": targets}
    read, trained = samples(pair, tokenizer, RecordFormat.PAIRS)
    assert read + trained == [*whole(file, inputs + targets), END]
    # A token of both is of the target.
    assert pieces(read) == f"▁{inputs}".replace(" ", "▁")[: len(pieces(read))] * bool(inputs)
    assert len(inputs) - len(pieces(read)) < max(map(len, PIECES[3:]))


@given(prompt=TEXT, chosen=ANSWER, rejected=ANSWER)
def test_answers_are_split_with_their_prompt(
    file: Path, prompt: str, chosen: str, rejected: str
) -> None:
    if chosen == rejected:
        return
    tokenizer = load_tokenizer(read_tokenizer(file))
    pair = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    read, *answers = samples(pair, tokenizer, RecordFormat.PREFERENCES)
    for answer, text in zip(answers, (chosen, rejected), strict=True):
        assert read + answer == [*whole(file, prompt + text), END]
    assert f"▁{prompt}".replace(" ", "▁").startswith(pieces(read))


TRL_PAIRS = [
    {"prompt": "b:", "chosen": " a", "rejected": " b"},
    {"chosen": "b: a b", "rejected": "b: a a"},
    {"prompt": "b:", "chosen": "a", "rejected": "a a</s>"},
    {"prompt": "b", "chosen": ": b a", "rejected": " a b"},
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("pair", TRL_PAIRS)
def test_tokens_of_text_pairs_are_those_of_trl(
    file: Path, tmp_path: Path, pair: dict[str, str]
) -> None:
    trl = pytest.importorskip("trl", reason="needs trl: make reference")
    datasets, transformers = pytest.importorskip("datasets"), pytest.importorskip("transformers")
    names = {"eos_token": "</s>", "pad_token": "<s>"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), **names)
    config = transformers.GPT2Config(vocab_size=len(PIECES), n_embd=8, n_layer=1, n_head=1)
    models = [transformers.GPT2LMHeadModel(config) for _ in range(2)]
    arguments = {"report_to": [], "use_cpu": True, "bf16": False}
    [row] = trl.DPOTrainer(
        *models,
        args=trl.DPOConfig(output_dir=str(tmp_path), **arguments),
        train_dataset=datasets.Dataset.from_list([pair]),
        processing_class=theirs,
    ).train_dataset
    tokenizer = load_tokenizer(read_tokenizer(file), special_tokens=True)
    ours = list(samples(pair, tokenizer, RecordFormat.PREFERENCES))
    assert ours == [row[name] for name in ("prompt_ids", "chosen_ids", "rejected_ids")]


def test_an_answer_that_ends_in_its_end_token_has_it_once(file: Path) -> None:
    tokenizer = load_tokenizer(read_tokenizer(file), special_tokens=True)
    pair = {"inputs": "a</s>", "targets": "b</s>"}
    found = [pieces(ids) for ids in samples(pair, tokenizer, RecordFormat.PAIRS)]
    assert found == ["▁a</s>", "▁b</s>"]
    pair = {"prompt": "a", "chosen": "b", "rejected": ":</s>"}
    found = [pieces(ids) for ids in samples(pair, tokenizer, RecordFormat.PREFERENCES)]
    assert found == ["▁a", "b</s>", ":</s>"]
    assert [pieces(ids) for ids in samples({"text": "</s>"}, tokenizer, RecordFormat.TEXT)] == [
        "",
        "</s>",
    ]
    line = Lines(Path("in.jsonl"), 1, [b'{"text": "</s>"}'])
    alone = tokenize_lines(line, Recipe(replace(tokenizer, start_id=None), RecordFormat.TEXT))
    assert alone.bad[0].reason == "its only token is the first, which nothing predicts"
    encoder = replace(tokenizer, input_end_id=END)
    pair = {"inputs": "a</s>", "targets": "b</s>"}
    found = [pieces(ids) for ids in samples(pair, encoder, RecordFormat.PAIRS)]
    assert found == ["▁a</s></s>", "▁b</s>"]


def test_an_answer_without_tokens_ends_although_its_prompt_does(file: Path, tmp_path: Path) -> None:
    model = tokenizers.Tokenizer.from_file(str(file))
    model.normalizer = Replace("b", "")
    model.save(str(tmp_path / "t.json"))
    tokenizer = load_tokenizer(read_tokenizer(tmp_path / "t.json"), special_tokens=True)
    pair = {"inputs": "a</s>", "targets": "b"}
    found = [pieces(ids) for ids in samples(pair, tokenizer, RecordFormat.PAIRS)]
    assert found == ["a</s>", "</s>"]


@pytest.mark.parametrize("text", ["  ab", " "])
def test_a_text_alone_is_all_trained(tmp_path: Path, text: str) -> None:
    # Of RoBERTa's kind, whose blanks are at no character of the text.
    vocabulary = {letter: n for n, letter in enumerate(["Ġ", "a", "b", "</s>"])}
    model = tokenizers.Tokenizer(BPE(vocabulary, []))
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    model.post_processor = processors.ByteLevel(trim_offsets=True)
    model.save(str(tmp_path / "t.json"))
    tokenizer = load_tokenizer(read_tokenizer(tmp_path / "t.json"))
    read, trained = samples({"text": text}, tokenizer, RecordFormat.TEXT)
    assert (read, trained) == ([], [*(" ab".index(letter) for letter in text), 3])


def pieces(ids: list[int]) -> str:
    return "".join(PIECES[n] for n in ids)
