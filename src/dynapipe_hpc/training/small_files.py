"""Small files of a Hugging Face model that accompany its weights, and token ids in them."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.atomic_write import writing
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_text, why_unreadable

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
ADAPTER_CONFIG, ADAPTER_MODEL = "adapter_config.json", "adapter_model.safetensors"
CARRIED = "huggingface"
"""Name of the folder, in a checkpoint or a run, that holds the small files."""
TEMPLATES = "additional_chat_templates"
"""Name of the folder of named chat templates."""
NAMES = (
    CONFIG,
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
    "USE_POLICY.md",
)


def copy_small_files(source: Path, target: Path) -> None:
    """Copies existing small files into `target`, a folder that it creates."""
    templates = [f"{TEMPLATES}/{path.name}" for path in (source / TEMPLATES).glob("*.jinja")]
    with writing(target):
        target.mkdir(exist_ok=True)
        if templates:
            (target / TEMPLATES).mkdir(exist_ok=True)
    for name in (*NAMES, *templates):
        if (source / name).is_file():
            if reason := why_unreadable(source / name):
                raise InputError(f"{source / name}: cannot be read: {reason}")
            with writing(target / name):
                shutil.copyfile(source / name, target / name)


def read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: is not a JSON object")
    return value


_END = "eos_token_id"
_NAMES = ("bos_token_id", _END, "pad_token_id", "decoder_start_token_id")


def write_token_ids(
    run: Path, shape: ModelShape, start_id: int | None, end_ids: Sequence[int]
) -> None:
    """Writes token ids into the small files of a run; a `config.json` gets the end tokens."""
    folder = run / CARRIED
    if (folder / CONFIG).exists():
        add_end_ids(folder, end_ids)
        return
    values: dict[str, Any] = {_END: _one_or_list(end_ids)}
    if shape.has_target_rows and start_id is not None:
        values |= {"decoder_start_token_id": start_id, "pad_token_id": start_id}
    elif start_id is not None:
        values |= {"bos_token_id": start_id}
    with writing(folder):
        folder.mkdir(exist_ok=True)
    _write(folder, values)


def add_end_ids(folder: Path, end_ids: Iterable[int]) -> None:
    """Adds end tokens to those of a model, unless it has them."""
    ids = read_end_ids(folder)
    if more := [each for each in end_ids if each not in ids]:
        _write(folder, {**_generation_values(folder), _END: _one_or_list([*ids, *more])})


def read_end_ids(folder: Path) -> list[int]:
    """Tokens that end a model's text, according to its small files."""
    value = _generation_values(folder).get(_END)
    return [each for each in (value if isinstance(value, list) else [value]) if type(each) is int]


def _generation_values(folder: Path) -> Mapping[str, Any]:
    """Values of `generation_config.json`; without the file, those that `transformers` would use."""
    if (folder / GENERATION_CONFIG).exists():
        return read_object(folder / GENERATION_CONFIG)
    config = read_object(folder / CONFIG) if (folder / CONFIG).exists() else {}
    return {name: config[name] for name in _NAMES if config.get(name) is not None}


def _one_or_list(ids: Sequence[int]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)


def _write(folder: Path, values: Mapping[str, Any]) -> None:
    with writing(folder / GENERATION_CONFIG):
        (folder / GENERATION_CONFIG).write_text(f"{json.dumps(values, indent=2)}\n")
