"""Files of a tokenizer, read and checked."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.hub_name import download_advice
from dynapipe_hpc.data.input_file import read_input, read_text
from dynapipe_hpc.data.text.added_tokens import TABLE, add_tokens
from dynapipe_hpc.data.text.vocabulary import vocabulary_sha256

MODEL_FILE, CONFIG_FILE, TEMPLATE_FILE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
MAP_FILE, OLDER_FILE = "special_tokens_map.json", "added_tokens.json"
"""Files of older folders, which have no table of tokens in `tokenizer_config.json`."""
TEMPLATE_FOLDER = "additional_chat_templates"


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer as its files define it.

    Attributes:
        name: Name of the folder, or of the files.
        sha256: SHA-256 of what determines token ids: the bytes of the files that define the
            tokenizer, and the tokens that other files of its folder add.
        vocabulary_sha256: SHA-256 of the tokens and ids in the files that define the tokenizer.
        model: Tokenizer of the library, which neither truncates nor pads.
        config: Content of `tokenizer_config.json`, and of the older files where they count.
        templates: The folder's chat templates by name, of which "default" is the usual one.
        is_decoder_only: Whether its model is known to have no encoder.
    """

    name: str
    sha256: str
    vocabulary_sha256: str
    model: tokenizers.Tokenizer
    config: Mapping[str, Any] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    is_decoder_only: bool = False


def read_tokenizer(paths: Sequence[Path]) -> TokenizerFiles | None:
    """Reads a tokenizer.

    Args:
        paths: The folder of a Hugging Face model; a file of the `tokenizers` library; the
            vocabulary (JSON) and the merges (text) of a byte-level BPE like that of GPT-2; or none.

    Returns:
        The files, or None if there are no paths.
    """
    match paths:
        case []:
            return None
        case [folder] if folder.is_dir():
            return _read_folder(folder)
        case [path] if advice := download_advice(path):
            raise InputError(f"{path}: there is no such file or folder{advice}")
        case [path]:
            name, model = path.name, _load_single_file(path)
        case [vocabulary, merges]:
            name = f"{vocabulary.name} {merges.name}"
            model = _load_byte_level_bpe(vocabulary, merges)
        case _:
            raise InputError(f"--tokenizer takes one file or two, got {len(paths)}")
    return TokenizerFiles(name, _sha256(paths), vocabulary_sha256(model.get_vocab()), model)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns whatever the library raises, even a Rust panic, into an `InputError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputError(f"{what}: {error}") from None


def _read_folder(folder: Path) -> TokenizerFiles:
    path = folder / MODEL_FILE
    if not path.exists():
        raise InputError(
            f"{folder}: is a folder without {MODEL_FILE}; let transformers write it: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    config, older_ids = _read_object(folder / CONFIG_FILE), {}
    if TABLE not in config:
        config |= _read_object(folder / MAP_FILE)
        older_ids = _read_object(folder / OLDER_FILE)
    model = _load_single_file(path)
    # Before more are added: whoever compares has no library that numbers those.
    vocabulary = vocabulary_sha256(model.get_vocab())
    with explained(f"{folder}: its files cannot be used together"):
        more_tokens = add_tokens(model, config, older_ids)
    templates = _template_files(folder) or _templates_in(config)
    # A T5's has neither a template nor this key.
    is_decoder_only = bool(templates) or "add_eos_token" in config
    if model_config := _read_object(folder / "config.json"):
        is_decoder_only = not model_config.get("is_encoder_decoder")
    sha256, name = _sha256([path], "".join(more_tokens)), folder.resolve().name
    return TokenizerFiles(name, sha256, vocabulary, model, config, templates, is_decoder_only)


def read_templates(path: Path) -> Mapping[str, str]:
    """Chat templates by name in a file of Jinja, or of JSON, as in a folder."""
    text = read_text(path)
    try:
        content = json.loads(text)
        templates = _templates_in(content) if isinstance(content, dict) else {}
    except (ValueError, RecursionError):
        templates = {"default": text}
    if not any(begin in each for each in templates.values() for begin in ("{{", "{%")):
        raise InputError(
            f"{path}: has no chat template: neither Jinja ({{{{ }}}} or {{% %}}) nor JSON with "
            "'chat_template'; name another file"
        )
    return templates


def _template_files(folder: Path) -> dict[str, str]:
    """Chat templates in files of their own, by name."""
    files = {path.stem: path for path in sorted((folder / TEMPLATE_FOLDER).glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).exists():
        files["default"] = folder / TEMPLATE_FILE
    return {name: read_text(path) for name, path in files.items()}


def _templates_in(config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates in `tokenizer_config.json`, by name: one without a name, or several."""
    templates = config.get("chat_template")
    if isinstance(templates, str):
        return {"default": templates} if templates else {}
    named = (
        [each for each in templates if isinstance(each, dict)]
        if isinstance(templates, list)
        else []
    )
    return {
        each["name"]: each["template"]
        for each in named
        if isinstance(each.get("name"), str) and isinstance(each.get("template"), str)
    }


def _sha256(paths: Sequence[Path], more: str = "") -> str:
    content = b"".join(read_input(path) for path in paths)
    return hashlib.sha256(content + more.encode()).hexdigest()


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a file that may be missing."""
    content = _read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object")
    return content


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_input(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a tokenizer file, which is JSON: {error}") from None


def _load_single_file(path: Path) -> tokenizers.Tokenizer:
    content = _read_json(path)
    # A vocabulary may have a token of this name.
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise InputError(
            f"{path}: not a tokenizer file, it has no 'model'; if it is a vocabulary, give its "
            "merges.txt too: --tokenizer VOCAB.json --tokenizer MERGES.txt"
        )
    with explained(f"{path}: cannot be loaded as a tokenizer"):
        return _plain(tokenizers.Tokenizer.from_file(str(path)))


def _load_byte_level_bpe(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    for path in (vocabulary, merges):
        read_input(path)
    files = f"{vocabulary}, {merges}"
    with explained(
        f"{files}: not the vocabulary and the merges of a byte-level BPE, in this order"
    ):
        model = tokenizers.Tokenizer(BPE.from_file(str(vocabulary), str(merges)))
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return _plain(model)


def _plain(model: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer without settings that it was saved with for one model."""
    model.no_truncation()
    model.no_padding()
    return model
