"""Small files of a Hugging Face model that travel along with its weights, unchanged."""

import json
import shutil
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.atomic_write import writing
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_text, why_unreadable

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
ADAPTER_CONFIG, ADAPTER_MODEL = "adapter_config.json", "adapter_model.safetensors"
CARRIED = "huggingface"
"""Folder of a checkpoint or a run that holds them."""
TEMPLATES = "additional_chat_templates"
"""Folder of chat templates that have names."""
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
    """Copies those that there are into a folder, which is made."""
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
