"""Files of a tokenizer, read and checked; `transformers` reads the files of a folder."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.data.input_file import download_advice, json_value, read_input, read_text
from dynapipe_hpc.data.text.vocabulary import (
    BYTES_SHA256,
    CONFIG_FILE,
    file_sha256,
    folder_sha256,
    vocabulary_sha256,
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer as its files define it."""

    name: str
    sha256: str  # SHA-256 of the bytes of the files that decide which tokens text becomes
    model: tokenizers.Tokenizer | None  # None if its tokens are bytes
    names: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    is_decoder_only: bool = False
    has_no_start: bool = False  # whether the files say that there is no token before text (Qwen)
    adds_start: bool | None = None  # whether they say that a token comes before text
    transformers: str = ""  # version of `transformers` that loaded the tokenizer; empty if none did

    @property
    def vocabulary_sha256(self) -> str:
        """SHA-256 of the tokens and ids."""
        return vocabulary_sha256(self.model.get_vocab()) if self.model else self.sha256


BYTES = TokenizerFiles("bytes", BYTES_SHA256, None)


def read_tokenizer(path: Path | None) -> TokenizerFiles:
    """Reads a tokenizer: a model's folder, or a file of the `tokenizers` library; bytes if none."""
    if path is None:
        return BYTES
    if path.is_dir():
        return _read_folder(path)
    if advice := download_advice(path):
        raise InputError(f"{path}: there is no such file or folder{advice}")
    model = _load_single_file(path)
    return TokenizerFiles(path.name, file_sha256(path), model)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns whatever the library raises, even a Rust panic, into an `InputError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, InputError):
        raise
    except BaseException as error:
        raise InputError(f"{what}: {error}") from None


def _read_folder(folder: Path) -> TokenizerFiles:
    if (sha256 := folder_sha256(folder)) is None:
        raise InputError(f"{folder}: is a folder without a tokenizer, such as a tokenizer.json")
    config, of_model = (_read_object(folder / name) for name in (CONFIG_FILE, "config.json"))
    with optional_packages():
        import transformers
    with explained(f"{folder}: transformers cannot load its tokenizer"), _quiet():
        tokenizer = _load(transformers.AutoTokenizer, folder)
        model = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(model, tokenizers.Tokenizer):
            raise InputError(
                f"{folder}: transformers loads its tokenizer as {type(tokenizer).__name__}, which "
                "does not say where in a text its tokens are; use a tokenizer with a tokenizer.json"
            )
    templates = tokenizer.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    is_encoder_decoder = of_model.get("is_encoder_decoder")
    # The tokenizer of a T5 has neither a template nor this key.
    is_of_decoder = bool(templates) or "add_eos_token" in config
    return TokenizerFiles(
        folder.resolve().name,
        sha256,
        _plain(model),
        names={k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)},
        templates=templates,
        is_decoder_only=not is_encoder_decoder if of_model else is_of_decoder,
        has_no_start=tokenizer.bos_token is None and "bos_token" in config,
        adds_start=config.get("add_bos_token"),
        transformers=transformers.__version__,
    )


def _load(auto: Any, folder: Path) -> Any:
    try:
        return auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise InputError(
            f"{folder}: its tokenizer is a program in the folder ('auto_map' in {CONFIG_FILE}), "
            "which is never run; save it as one of the classes of transformers"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def read_template(path: Path) -> str:
    """The chat template in a file."""
    text = read_text(path)
    if json_value(text) is not None or not ("{{" in text or "{%" in text):
        raise InputError(
            f"{path}: is no chat template, which is Jinja, with {{{{ }}}} or {{% %}}; of JSON, "
            "take out the text of its 'chat_template': jq -r .chat_template FILE > FILE.jinja "
            "(of a list: .chat_template[0].template)"
        )
    return text


def _read_object(path: Path) -> dict[str, Any]:
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
            f"{path}: not a tokenizer file, it has no 'model'; if it is a vocabulary, name the "
            "folder of its model"
        )
    with explained(f"{path}: cannot be loaded as a tokenizer"):
        return _plain(tokenizers.Tokenizer.from_file(str(path)))


def _plain(model: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    model.no_truncation()
    model.no_padding()
    return model
