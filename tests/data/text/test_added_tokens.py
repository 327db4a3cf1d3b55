"""Tokens that a tokenizer's folder has beside its `tokenizer.json`: as `transformers` has them."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.examples.chat_tokenizer import folder_of
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.recipe import recipe_of
from dynapipe_hpc.data.text.record_format import RecordFormat
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, load_tokenizer

WORDS = ("?", "a", "b", "</s>", "<s>", "<im>")
NEW = ("<new>", "<im>", "</s>", "<pad>", "<other>", "[X]")
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def folder(path: Path, **files: dict[str, Any]) -> Path:
    """A tokenizer of words, and JSON files beside it."""
    path.mkdir(exist_ok=True)
    model = tokenizers.Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="?"))  # noqa: S106
    model.pre_tokenizer = Whitespace()
    model.add_special_tokens(["</s>"])
    model.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def token(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, **dict.fromkeys(FLAGS, False), **flags}


def load(path: Path) -> Tokenizer:
    return load_tokenizer(read_tokenizer([path]))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    [(tokens, _)] = tokenizer.encode_marked([text], [[]])
    return list(tokens)


def test_a_token_of_the_table_that_the_tokenizer_lacks_is_added(tmp_path: Path) -> None:
    table = {"6": token("<new>", special=True)}
    found = load(folder(tmp_path, tokenizer_config={"added_tokens_decoder": table}))
    assert ids(found, "a<new>b") == [1, 6, 2]
    assert (found.vocab_size, found.special_in("a<new>b")) == (7, "<new>")


def test_flags_are_those_of_the_table(tmp_path: Path) -> None:
    table = {"3": token("</s>", special=True, rstrip=True)}
    config = {"added_tokens_decoder": table, "eos_token": "</s>"}
    found = load(folder(tmp_path, tokenizer_config=config))
    words = [each for each, _ in found.encode_marked(["a</s>  b"], [[(1, 7)]])]
    assert words == [[1, 3, 2]]
    [(_, [span])] = found.encode_marked(["</s>  "], [[(4, 6)]])
    assert span == (0, 1), "the blanks belong to the token"


def test_a_token_with_a_name_is_special(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"6": token("<new>")}, "bos_token": "<new>"}
    assert load(folder(tmp_path, tokenizer_config=config)).special_in("a<new>") == "<new>"


def test_older_folders_name_their_tokens_in_a_map(tmp_path: Path) -> None:
    config = {"eos_token": "a", "pad_token": "b"}
    names = {"eos_token": token("<im>"), "bos_token": "<s>"}
    found = load(folder(tmp_path, tokenizer_config=config, special_tokens_map=names))
    assert (found.eos_id, found.special_in("x<s>")) == (5, "<s>")
    alone = load(folder(tmp_path / "alone", special_tokens_map=names))
    assert alone.eos_id == 5


def test_the_map_does_not_count_beside_a_table(tmp_path: Path) -> None:
    config = {"eos_token": "</s>", "added_tokens_decoder": {}}
    found = load(
        folder(tmp_path, tokenizer_config=config, special_tokens_map={"eos_token": "<im>"})
    )
    assert found.eos_id == 3


def test_templates_write_the_tokens_of_a_map(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    path = folder(
        tmp_path,
        tokenizer_config={"chat_template": template},
        special_tokens_map={"bos_token": "<s>"},
    )
    files = read_tokenizer([path])
    recipe = recipe_of(load_tokenizer(files), files, RecordFormat.MESSAGES)
    assert recipe.template is not None
    assert recipe.template.asking("a") == "<s>a"


def test_older_folders_have_ids_in_a_file_of_their_own(tmp_path: Path) -> None:
    found = load(folder(tmp_path, added_tokens={"<new>": 6}))
    assert ids(found, "a<new>b") == [1, 6, 2]
    assert found.special_in("<new>") is None
    other = load(folder(tmp_path, added_tokens={"<odd>": 3}))
    assert other.vocab_size == 6, "tokenizer.json says what token 3 is"


def test_the_hash_changes_with_tokens_that_are_added(tmp_path: Path) -> None:
    table = {"3": token("</s>", special=True)}
    alone = load(folder(tmp_path / "alone"))
    same = load(folder(tmp_path / "same", tokenizer_config={"added_tokens_decoder": table}))
    table["6"] = token("<new>")
    more = load(folder(tmp_path / "more", tokenizer_config={"added_tokens_decoder": table}))
    assert alone.sha256 == same.sha256 != more.sha256


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"added_tokens_decoder": [1]}, "'added_tokens_decoder' is .*, not a JSON object from ids"),
        ({"added_tokens_decoder": {"x": token("a")}}, ".*, not a JSON object from ids to tokens"),
        ({"added_tokens_decoder": {"1": {"content": 3}}}, "'added_tokens_decoder' has .*, not a"),
        ({"pad_token": {"lstrip": True}}, "'pad_token' has .*, not a token"),
        ({"pad_token": {"content": "a", "lstrip": 3}}, "'pad_token' has .*, with a flag neither"),
        ({"extra_special_tokens": [3]}, "'extra_special_tokens' has .*3.*, not a token"),
    ],
)
def test_what_is_no_token_is_refused_by_its_key(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    path = folder(tmp_path, tokenizer_config=config)
    with pytest.raises(InputError, match=f"its files cannot be used together: {message}"):
        load(path)


def random_files(draw: random.Random) -> dict[str, dict[str, Any]]:
    """Tables, maps and names that agree or not, as people leave them."""

    def any_token() -> dict[str, Any]:
        return token(draw.choice(NEW), **{flag: draw.random() < 0.4 for flag in FLAGS})

    def any_name() -> Any:
        return draw.choice((draw.choice(NEW), {"__type": "AddedToken", **any_token()}))

    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name in draw.sample(("bos_token", "unk_token", "pad_token"), 2):
        config[name] = any_name()
    if draw.random() < 0.4:
        config["additional_special_tokens"] = draw.sample(NEW, 2)
    if draw.random() < 0.5:
        contents = [*draw.sample(NEW, 3), "</s>"]
        ids_of = dict(zip(WORDS, range(len(WORDS)), strict=True))
        table = {
            ids_of.get(each, 6 + k): any_token() | {"content": each}
            for k, each in enumerate(contents)
        }
        config["added_tokens_decoder"] = {str(key): each for key, each in table.items()}
    names = {"bos_token": draw.choice(NEW), "pad_token": any_token(), "image_token": "[X]"}
    older = {each: 6 + k for k, each in enumerate(each for each in NEW if each not in WORDS)}
    files: dict[str, dict[str, Any]] = {"tokenizer_config": config}
    if draw.random() < 0.6:
        files["special_tokens_map"] = names
    if draw.random() < 0.4:
        files["added_tokens"] = older
    return files


def test_ids_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: make reference")
    draw = random.Random(5)  # noqa: S311 (not for secrets)
    pieces = [*WORDS, *NEW, " ", "  ", "x", "A"]
    for k in range(60):
        files = random_files(draw)
        path = folder(tmp_path / str(k), **files)
        ours, theirs = load(path), transformers.AutoTokenizer.from_pretrained(path)
        assert ours.vocab_size == len(theirs), files
        for _ in range(20):
            text = "".join(draw.choices(pieces, k=8))
            expected = theirs.encode(text, add_special_tokens=False)
            assert ids(ours, text) == expected, (text, files)


def test_chats_of_older_folders_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: make reference")
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ sep_token }}{% endif %}"
    )
    path = folder_of(tmp_path / "tokenizer", template)
    config = json.loads((path / "tokenizer_config.json").read_text()) | {"bos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    names = {"bos_token": "<s>", "eos_token": token("<|eot_id|>"), "sep_token": "<|im_start|>"}
    (path / "special_tokens_map.json").write_text(json.dumps(names))
    files = read_tokenizer([path])
    recipe = recipe_of(load_tokenizer(files), files, RecordFormat.MESSAGES)
    assert recipe.template is not None
    theirs = transformers.AutoTokenizer.from_pretrained(path).apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_dict=False
    )
    assert ids(recipe.tokenizer, recipe.template.asking("Hello")) == theirs


NAMES = ("eos_token", "image_token", "pause", "other")
ADDED = {"__type": "AddedToken", **token("<new>")}
NAMED = [
    ({"extra_special_tokens": {"image_token": "<im>", "pause": ADDED}}, "</s> <im> <new> "),
    ({"image_token": "[X]", "extra_special_tokens": {"image_token": "<im>"}}, "</s> <im>  "),
    ({"additional_special_tokens": {"pause": "<im>"}}, "</s>  <im> "),
    ({"model_specific_special_tokens": {"pause": "<im>"}, "other": "<new>"}, "</s>  <im> "),
    ({"extra_special_tokens": ["<im>"]}, "</s>   "),
]


@pytest.mark.parametrize(("config", "expected"), NAMED)
def test_a_template_sees_the_names_of_more_tokens(
    tmp_path: Path, config: dict[str, Any], expected: str
) -> None:
    path = named_tokens(tmp_path, config)
    files = read_tokenizer([path])
    recipe = recipe_of(load_tokenizer(files), files, RecordFormat.MESSAGES)
    assert recipe.template is not None
    assert recipe.template.asking("x") == expected


@pytest.mark.parametrize(("config", "expected"), NAMED)
def test_names_of_more_tokens_are_those_of_transformers(
    tmp_path: Path, config: dict[str, Any], expected: str
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: make reference")
    theirs = transformers.AutoTokenizer.from_pretrained(named_tokens(tmp_path, config))
    chat = [{"role": "user", "content": "x"}]
    assert theirs.apply_chat_template(chat, tokenize=False) == expected


def named_tokens(path: Path, config: dict[str, Any]) -> Path:
    """A folder whose template writes tokens by their names."""
    template = " ".join(f"{{{{ {name} }}}}" for name in NAMES)
    of_all = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    return folder(path, tokenizer_config={**of_all, "chat_template": template, **config})
