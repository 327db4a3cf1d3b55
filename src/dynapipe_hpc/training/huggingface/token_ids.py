"""Token ids that begin and end what a model reads, in its `generation_config.json`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.atomic_write import writing
from dynapipe_hpc.training.small_files import CARRIED, CONFIG, GENERATION_CONFIG, read_object

_END = "eos_token_id"
_NAMES = ("bos_token_id", _END, "pad_token_id", "decoder_start_token_id")


def write_token_ids(
    run: Path, shape: ModelShape, start_id: int | None, end_ids: Sequence[int]
) -> None:
    """Writes token ids where a run has small files of Hugging Face.

    A model that came with a `config.json` keeps its ids; those that end are added.
    """
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
    """Adds tokens that end to those of a model, unless it has them."""
    ids = read_end_ids(folder)
    if more := [each for each in end_ids if each not in ids]:
        _write(folder, {**_generation_values(folder), _END: _one_or_list([*ids, *more])})


def read_end_ids(folder: Path) -> list[int]:
    """Tokens that end what a model writes, as its small files say."""
    value = _generation_values(folder).get(_END)
    return [each for each in (value if isinstance(value, list) else [value]) if type(each) is int]


def _generation_values(folder: Path) -> Mapping[str, Any]:
    """Values of `generation_config.json`; without one, those that `transformers` takes for it."""
    if (folder / GENERATION_CONFIG).exists():
        return read_object(folder / GENERATION_CONFIG)
    config = read_object(folder / CONFIG) if (folder / CONFIG).exists() else {}
    return {name: config[name] for name in _NAMES if config.get(name) is not None}


def _one_or_list(ids: Sequence[int]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)


def _write(folder: Path, values: Mapping[str, Any]) -> None:
    with writing(folder / GENERATION_CONFIG):
        (folder / GENERATION_CONFIG).write_text(f"{json.dumps(values, indent=2)}\n")
