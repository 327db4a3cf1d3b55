"""Folders of tokenizers of unlike kinds: tokens are those of `transformers`, or refused by name."""

import json
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.recipe import recipe_of
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, load_tokenizer

TEXT = ["Hello world, hello you", "a b  c", "né 日本 🐟", "user assistant system"] * 9
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]"]
PIECES = [
    *(*SPECIAL[:5], "<new>", "<im>", " ", "  ", "Hello", "hello"),
    *("né", "日本", "🐟", "龘", "x", "\n"),
]
Write = Callable[[Path], None]


def trained(model: tokenizers.models.Model, trainer: Any, pre: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre
    made.train_from_iterator(TEXT, trainer)
    return made


def byte_level() -> tokenizers.Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = trained(models.BPE(), trainer, pre)
    made.decoder = decoders.ByteLevel()
    return made


def byte_fallback() -> tokenizers.Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*SPECIAL, *(f"<0x{n:02X}>" for n in range(256))],
        show_progress=False,
    )
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)  # noqa: S106
    return trained(model, trainer, pre_tokenizers.Metaspace())


def unigram() -> tokenizers.Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=90,
        special_tokens=SPECIAL,
        unk_token="<unk>",  # noqa: S106 (not a password)
        show_progress=False,
    )
    made = trained(models.Unigram(), trainer, pre_tokenizers.Metaspace())
    made.normalizer = normalizers.NFKC()
    return made


def word_piece() -> tokenizers.Tokenizer:
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False)
    pre = pre_tokenizers.BertPreTokenizer()
    made = trained(models.WordPiece(unk_token="[UNK]"), trainer, pre)  # noqa: S106
    made.normalizer = normalizers.BertNormalizer()
    return made


def words() -> tokenizers.Tokenizer:
    trainer = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    pre = pre_tokenizers.Whitespace()
    return trained(models.WordLevel(unk_token="<unk>"), trainer, pre)  # noqa: S106


KINDS: dict[str, tuple[Callable[[], tokenizers.Tokenizer], str]] = {
    "GPT-2": (byte_level, "GPT2Tokenizer"),
    "Llama": (byte_fallback, "LlamaTokenizer"),
    "T5": (unigram, "T5Tokenizer"),
    "BERT": (word_piece, "BertTokenizer"),
    "words": (words, "OtherTokenizer"),
}


def flagged(content: str, **flags: bool) -> dict[str, Any]:
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return {"content": content, **dict.fromkeys(names, False), **flags}


ADDITIONS: dict[str, dict[str, dict[str, Any]]] = {
    "alone": {},
    "named tokens": {"tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>"}},
    "a map and ids, as before": {
        "special_tokens_map": {"bos_token": "<im>", "pad_token": flagged("<pad>")},
        "added_tokens": {"<new>": 900},
        "tokenizer_config": {"extra_special_tokens": {"image_token": "<im>"}},
    },
}


def folder_of(path: Path, kind: str, addition: str) -> Path:
    make, class_name = KINDS[kind]
    path.mkdir()
    make().save(str(path / "tokenizer.json"))
    files = {name: dict(content) for name, content in ADDITIONS[addition].items()}
    config = {"tokenizer_class": class_name, **files.pop("tokenizer_config", {})}
    for name, content in {**files, "tokenizer_config": config}.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def load(path: Path) -> Tokenizer:
    return load_tokenizer(read_tokenizer(path), end_token="</s>")  # noqa: S106


@pytest.mark.parametrize(("kind", "addition"), list(product(KINDS, ADDITIONS)))
def test_tokens_are_those_of_transformers(tmp_path: Path, kind: str, addition: str) -> None:
    folder = folder_of(tmp_path / "model", kind, addition)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load(folder)
    assert ours.files.transformers == transformers.__version__
    assert ours.vocab_size == max(theirs.get_vocab().values()) + 1
    draw = random.Random(kind + addition)  # noqa: S311 (not for secrets)
    for _ in range(15):
        text = "".join(draw.choices(PIECES, k=8))
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        first, last = sorted(draw.sample(range(len(text) + 1), 2))
        ids, [span] = ours.encode(text, [(first, last)])
        assert list(ids) == expected["input_ids"], text
        held = [
            k
            for k, (start, end) in enumerate(expected["offset_mapping"])
            if start < last and first < end
        ]
        # A character without a token of its own, such as a blank, has none.
        assert span == ((held[0], held[-1] + 1) if held else (len(ids), len(ids))), text


def with_other_files(path: Path, kind: str) -> Path:
    path.mkdir()
    made = {"GPT-2": byte_level, "CTRL": byte_level, "BERT": word_piece}[kind]()
    made.model.save(str(path))
    of_class = {"tokenizer_class": f"{kind.replace('-', '')}Tokenizer".replace("BERT", "Bert")}
    (path / "tokenizer_config.json").write_text(json.dumps(of_class))
    return path


@pytest.mark.parametrize("kind", ["GPT-2", "BERT"])
def test_older_folders_are_read_as_transformers_reads_them(tmp_path: Path, kind: str) -> None:
    folder = with_other_files(tmp_path / "model", kind)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ids, _ = load(folder).encode("Hello né 🐟 x")
    assert list(ids) == theirs.encode("Hello né 🐟 x", add_special_tokens=False)


def write_program(path: Path) -> None:
    config = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "own.py").write_text("raise SystemExit('it was run')")


def write_list(path: Path) -> None:
    (path / "tokenizer_config.json").write_text("[]")


def write_pointer(path: Path) -> None:
    (path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")


def write_nothing(path: Path) -> None:
    (path / "tokenizer.json").unlink()


def write_odd_token(path: Path) -> None:
    (path / "tokenizer_config.json").write_text('{"pad_token": 3}')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (write_program, r"its tokenizer is a program in the folder \('auto_map' .*never run"),
        (write_list, r"tokenizer_config.json: not a JSON object"),
        (write_pointer, "git lfs pull"),
        (write_nothing, "is a folder without a tokenizer, such as a tokenizer.json"),
        (write_odd_token, "transformers cannot load its tokenizer: .*pad_token"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(
    tmp_path: Path, change: Write, message: str
) -> None:
    folder = folder_of(tmp_path / "model", "words", "alone")
    change(folder)
    with pytest.raises(InputError, match=rf"model.*{message}"):
        load(folder)


def test_a_tokenizer_that_does_not_say_where_tokens_are_is_refused(tmp_path: Path) -> None:
    folder = with_other_files(tmp_path / "model", "CTRL")
    with pytest.raises(InputError, match="its tokenizer as CTRLTokenizer, which does not say"):
        load(folder)


def test_the_hash_is_that_of_the_files(tmp_path: Path) -> None:
    one, same, other = (
        folder_of(tmp_path / name, "words", addition)
        for name, addition in (("1", "alone"), ("2", "alone"), ("3", "named tokens"))
    )
    assert load(one).files.sha256 == load(same).files.sha256 != load(other).files.sha256
    assert load(one).files.vocabulary_sha256 == load(other).files.vocabulary_sha256


@pytest.mark.parametrize(
    ("config", "start"),
    [
        ({"bos_token": None}, None),  # Qwen
        ({"bos_token": "<s>"}, None),
        ({"bos_token": "<s>", "add_bos_token": True}, "<s>"),
        ({"bos_token": "</s>", "add_bos_token": False}, "</s>"),  # GPT-2
        ({}, "</s>"),
    ],
)
def test_the_configuration_says_what_comes_before_samples(
    tmp_path: Path, config: dict[str, object], start: str | None
) -> None:
    folder = folder_of(tmp_path / "model", "words", "alone")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert load(folder).start_id == (None if start is None else SPECIAL.index(start))


PAD, EOS = SPECIAL.index("<pad>"), SPECIAL.index("</s>")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (PAD, EOS)),
        ({"tokenizer_config": {"add_eos_token": True, "bos_token": None}}, (None, None)),
        ({"tokenizer_config": {"add_eos_token": True}}, (EOS, None)),
        ({"tokenizer_config": {"chat_template": "{{ a }}", "bos_token": None}}, (None, None)),
        ({"config": {"model_type": "llama"}}, (EOS, None)),
        (
            {"config": {"is_encoder_decoder": True}, "tokenizer_config": {"chat_template": "{{"}},
            (PAD, EOS),
        ),
    ],
)
def test_a_tokenizer_that_ends_text_may_be_that_of_a_decoder(
    tmp_path: Path, files: dict[str, object], expected: tuple[int | None, int | None]
) -> None:
    path = tmp_path / "tokenizer.json"
    model = words()
    model.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", EOS)]
    )
    model.save(str(path))
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    found = load(tmp_path)
    assert (found.start_id, found.input_end_id) == expected


def templates_in(folder: Path) -> dict[str, str]:
    files = read_tokenizer(folder)
    return dict(files.templates)


def test_a_template_may_be_in_a_file_or_in_the_configuration(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", "words", "alone")
    named = [{"name": name, "template": name} for name in ("default", "tool")]
    for template, found in (
        ("one", {"default": "one"}),
        (named, {n: n for n in ("default", "tool")}),
    ):
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        assert templates_in(folder) == found
    (folder / "chat_template.jinja").write_text("two")
    assert templates_in(folder)["default"] == "two"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("three")
    assert templates_in(folder) == {"default": "two", "tool_use": "three"}


NAMED = [
    {"image_token": "[X]", "extra_special_tokens": {"image_token": "<im>", "pause": "<new>"}},
    {"bos_token": "<s>", "sep_token": {"__type": "AddedToken", **flagged("[SEP]")}},
]


@pytest.mark.parametrize("config", NAMED)
def test_a_template_sees_the_tokens_that_transformers_names(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    names = ("eos_token", "bos_token", "sep_token", "image_token", "pause", "other")
    template = " ".join(f"{{{{ {name} }}}}" for name in names)
    folder = folder_of(tmp_path / "model", "words", "alone")
    of_all = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**of_all, "chat_template": template, **config})
    )
    files = read_tokenizer(folder)
    recipe = recipe_of(load_tokenizer(files), RecordFormat.MESSAGES)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "x"}]
    assert recipe.template is not None
    assert recipe.template.asking("x") == theirs.apply_chat_template(chat, tokenize=False)
