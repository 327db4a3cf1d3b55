"""The model that a path names: its sizes, without its weights and without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.rope_scaling import short_tokens
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.hub_name import download_advice
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.files import NAME, Description, Facts
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder
from dynapipe_hpc.training.huggingface.any_decoder import FAMILY
from dynapipe_hpc.training.huggingface.model_type_mapping import ModelTypeMapping, Values
from dynapipe_hpc.training.huggingface.pages import has_another_family, page_for, page_of
from dynapipe_hpc.training.huggingface.settings import Settings
from dynapipe_hpc.training.small_files import (
    ADAPTER_CONFIG,
    ADAPTER_MODEL,
    CARRIED,
    CONFIG,
    GENERATION_CONFIG,
    read_object,
)

FACT = "model."
"""Prefix of the keys of the [model] table among the facts of a checkpoint."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A model on disk.

    Attributes:
        folder: Folder of Hugging Face files, or a checkpoint.
        description: Description of the checkpoint; None for a folder of Hugging Face files.
        small_files: Folder with the small files of Hugging Face that belong to it; None if there
            are none.
        page: ModelTypeMapping of the model's type.
        settings: Settings of Hugging Face; if the model has no `config.json`, those that it would
            be exported with.
        shape: The model.
    """

    folder: Path
    description: Description | None
    small_files: Path | None
    page: ModelTypeMapping
    settings: Settings
    shape: ModelShape

    @property
    def values(self) -> Values:
        """Values of the [model] table."""
        return {key: value for key, value in self.shape.sizes.items() if value is not None}

    @property
    def longest(self) -> int | None:
        """Most tokens that `max_tokens` may be set to; None where it must be as it is."""
        return self.page.longest(self.settings)

    @property
    def longest_text(self) -> str:
        """The same with its reason."""
        if self.page.family != FAMILY:
            return f"{self.longest}, the window of its attention"
        if short_tokens(self.settings.values) is None:
            return f"{self.longest} (max_position_embeddings)"
        return (
            f"{self.longest} (original_max_position_embeddings), as angles of longer samples would "
            "also turn the others of a micro-batch (longrope)"
        )

    def __str__(self) -> str:
        """Path and kind."""
        if self.description is None:
            return f"{self.folder} ({self.page.model_type} of Hugging Face)"
        return f"{self.folder} (checkpoint after {self.description.n_done} iterations)"


def find_origin(path: Path, family: str | None = None) -> Origin:
    """The model of a Hugging Face folder, a checkpoint, or a run's newest checkpoint.

    Args:
        path: The folder.
        family: Family that is to train a Hugging Face model; None for the first that can.
    """
    if not path.is_dir():
        raise InputError(
            f"{path}: is no folder; name the folder of a model, a checkpoint or a run"
            f"{download_advice(path)}"
        )
    if (checkpoint := find_checkpoint(path)) is not None:
        return _of_checkpoint(checkpoint)
    if (path / ADAPTER_CONFIG).exists():
        raise _adapter_error(path)
    if not (path / CONFIG).exists():
        raise InputError(
            f"{path}: is a folder, but has neither {CONFIG} (a Hugging Face model) nor "
            f"checkpoint.json (a checkpoint) nor {CHECKPOINTS} (a run); name one that has"
        )
    settings = Settings(path / CONFIG, read_object(path / CONFIG))
    page = page_of(settings, family)
    _ = settings.dtype  # an export, after training, would be late to refuse it
    try:
        values = page.model(settings)
    except InputError as error:
        if not has_another_family(page, settings):
            raise
        raise InputError(
            f'{error}; or set model.family to "{FAMILY}", which may have it'
        ) from error
    return Origin(path, None, path, page, settings, _shape(path / CONFIG, values))


def _adapter_error(folder: Path) -> InputError:
    merging = "merge it with peft (merge_and_unload, then save_pretrained in a new folder)"
    if (folder / CONFIG).exists():
        return InputError(
            f"{folder}: has an adapter of peft ({ADAPTER_CONFIG}) beside a model, which "
            f"transformers adds to the weights; {merging}, or remove {ADAPTER_CONFIG} and "
            f"{ADAPTER_MODEL}"
        )
    base = read_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    return InputError(
        f"{folder}: is no model but an adapter of peft, for the model "
        f"{quoted(base) if base else 'that it was trained beside'}; {merging}, or name that model"
    )


def shape_of(checkpoint: Path, facts: Facts) -> ModelShape:
    """The model of a checkpoint."""
    facts_of_model = {
        key.removeprefix(FACT): value for key, value in facts.items() if key.startswith(FACT)
    }
    return _shape(
        checkpoint, {key: value for key, value in facts_of_model.items() if value is not None}
    )


def _of_checkpoint(checkpoint: Path) -> Origin:
    description = Description.read(checkpoint)
    shape = shape_of(checkpoint, description.facts)
    small_files = checkpoint / CARRIED
    config = small_files / CONFIG
    if not config.exists():
        page, tokens = page_for(shape), small_files / GENERATION_CONFIG
        values = {"model_type": page.model_type, **page.config(shape)}
        if not tokens.exists():
            return Origin(checkpoint, description, None, page, Settings(checkpoint, values), shape)
        settings = Settings(checkpoint, {**values, **read_object(tokens)})
        return Origin(checkpoint, description, small_files, page, settings, shape)
    settings = Settings(config, read_object(config))
    page = page_of(settings, shape.family)
    return Origin(checkpoint, description, small_files, page, settings, shape)


def _shape(path: Path, values: dict[str, Any]) -> ModelShape:
    try:
        return shape_from_values(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"][1:])) or "sizes"
        raise InputError(f"{path}: {key}: {first['msg']}") from None


CHECKPOINTS = "checkpoints"
"""Folder of a run that holds its checkpoints."""


def find_checkpoint(path: Path) -> Path | None:
    """A checkpoint itself, or the newest complete one of a run folder; None for another folder."""
    if (path / NAME).exists():
        return path
    if not (path / CHECKPOINTS).is_dir():
        return None
    complete = CheckpointFolder(path / CHECKPOINTS, CheckpointConfig()).complete()
    if not complete:
        raise InputError(f"{path}: is a run without a complete checkpoint; name another")
    return complete[0]
