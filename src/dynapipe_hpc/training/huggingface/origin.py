"""The model that a path names: its type and sizes, without its weights and without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.rope_scaling import short_tokens
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import download_advice, open_input
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import (
    NAME,
    CheckpointFolder,
    Description,
    Facts,
    new_checksum,
)
from dynapipe_hpc.training.huggingface.decoder import GPT2, LLAMA, MISTRAL, QWEN2, QWEN3
from dynapipe_hpc.training.huggingface.mapping import ModelTypeMapping, Settings, Values
from dynapipe_hpc.training.huggingface.t5 import MT5, T5
from dynapipe_hpc.training.huggingface.tensors import weight_files
from dynapipe_hpc.training.huggingface.transformers import (
    FAMILY,
    is_decoder,
    mapping_of_decoder,
    media_problem,
)
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


MAPPINGS: Mapping[str, ModelTypeMapping] = {
    each.model_type: each for each in (GPT2, T5, MT5, LLAMA, MISTRAL, QWEN2, QWEN3)
}


def mapping_of(settings: Settings, family: str | None = None) -> ModelTypeMapping:
    model_type = settings.get("model_type", "")
    if model_type not in MAPPINGS and not is_decoder(settings):
        if problem := media_problem(settings):
            raise InputError(f"{settings.path}: {problem}")
        raise InputError(
            f"{settings.path}: 'model_type' is {quoted(model_type)}, which is not supported; "
            f"choose another model: {', '.join(MAPPINGS)}, or a decoder of transformers, whose "
            "'architectures' name a class ...ForCausalLM"
        )
    if settings.get("quantization_config") is not None:
        raise InputError(
            f"{settings.path}: has a 'quantization_config': its tensors are not weights that can "
            "be trained; take the unquantized model"
        )
    if family == FAMILY or model_type not in MAPPINGS:
        return mapping_of_decoder(settings)
    return MAPPINGS[model_type]


def has_another_family(mapping: ModelTypeMapping, settings: Settings) -> bool:
    """Whether the family "transformers" may train a model as well as its mapping's family."""
    return mapping.family == LLAMA.family and is_decoder(settings)


def mapping_for(shape: ModelShape) -> ModelTypeMapping:
    """The first mapping that describes a model."""
    if isinstance(shape, TransformersShape):
        return mapping_of_decoder(Settings(Path("model.settings"), json.loads(shape.settings)))
    for mapping in MAPPINGS.values():
        if mapping.family == shape.family and mapping.fits(shape):
            return mapping
    raise InputError(
        f"no Hugging Face model type is a {shape.family} with these values of qkv_bias, "
        "output_bias and qk_norm; set qkv_bias or qk_norm alone, or both biases with a hidden_size "
        "that is a multiple of n_heads"
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """A model on disk; `settings` are those in its config.json, or those of its export."""

    folder: Path
    description: Description | None  # description of the checkpoint; None for a Hugging Face folder
    small_files: Path | None  # folder of its small Hugging Face files, if any
    mapping: ModelTypeMapping
    settings: Settings
    shape: ModelShape

    @property
    def values(self) -> Values:
        """Values of the [model] table."""
        return {key: value for key, value in self.shape.sizes.items() if value is not None}

    @property
    def longest(self) -> int | None:
        """Largest value of `max_tokens`; None where it must not be changed."""
        return self.mapping.longest(self.settings)

    @property
    def longest_text(self) -> str:
        """The value of `longest` as text, with its reason."""
        if self.mapping.family != FAMILY:
            return f"{self.longest}, the window of its attention"
        if short_tokens(self.settings.values) is None:
            return f"{self.longest} (max_position_embeddings)"
        return (
            f"{self.longest} (original_max_position_embeddings), as a longer sample would change "
            "the angles of all samples in its micro-batch (longrope)"
        )

    def __str__(self) -> str:
        if self.description is None:
            return f"{self.folder} ({self.mapping.model_type} of Hugging Face)"
        return f"{self.folder} (checkpoint after {self.description.n_done} iterations)"


def find_origin(path: Path, family: str | None = None) -> Origin:
    """The model of a Hugging Face folder (as a `family`), a checkpoint, or a run's newest one."""
    if not path.is_dir():
        raise InputError(
            f"{path}: is not a folder; name the folder of a model, a checkpoint or a run"
            f"{download_advice(path)}"
        )
    if (checkpoint := find_checkpoint(path)) is not None:
        return _of_checkpoint(checkpoint)
    if (path / ADAPTER_CONFIG).exists():
        raise _adapter_error(path)
    if not (path / CONFIG).exists():
        raise InputError(
            f"{path}: is a folder, but has neither {CONFIG} (a Hugging Face model) nor "
            f"checkpoint.json (a checkpoint) nor {CHECKPOINTS} (a run); name a folder "
            "with one of these"
        )
    settings = Settings(path / CONFIG, read_object(path / CONFIG))
    mapping = mapping_of(settings, family)
    _ = settings.dtype  # refused here, as the export after training would be too late
    try:
        values = mapping.model(settings)
    except InputError as error:
        if not has_another_family(mapping, settings):
            raise
        raise InputError(
            f'{error}; or set model.family to "{FAMILY}", which may support it'
        ) from error
    return Origin(path, None, path, mapping, settings, _shape(path / CONFIG, values))


def _adapter_error(folder: Path) -> InputError:
    merging = "merge it with peft (merge_and_unload, then save_pretrained in a new folder)"
    if (folder / CONFIG).exists():
        return InputError(
            f"{folder}: has a model and an adapter of peft ({ADAPTER_CONFIG}), which "
            f"transformers adds to the weights; {merging}, or remove {ADAPTER_CONFIG} and "
            f"{ADAPTER_MODEL}"
        )
    base = read_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    return InputError(
        f"{folder}: is not a model but an adapter of peft, for the model "
        f"{quoted(base) if base else 'that it was trained on'}; {merging}, or name that model"
    )


def shape_of(checkpoint: Path, facts: Facts) -> ModelShape:
    facts_of_model = {
        key.removeprefix(FACT): value for key, value in facts.items() if key.startswith(FACT)
    }
    return _shape(
        checkpoint, {key: value for key, value in facts_of_model.items() if value is not None}
    )


def _of_checkpoint(checkpoint: Path) -> Origin:
    description = Description.read(checkpoint)
    shape = shape_of(checkpoint, description.facts)
    small_files: Path | None = checkpoint / CARRIED
    config, tokens = (checkpoint / CARRIED / name for name in (CONFIG, GENERATION_CONFIG))
    if config.exists():
        settings = Settings(config, read_object(config))
        mapping = mapping_of(settings, shape.family)
    else:
        mapping = mapping_for(shape)
        values = {"model_type": mapping.model_type, **mapping.config(shape)}
        settings = Settings(checkpoint, values | (read_object(tokens) if tokens.exists() else {}))
        small_files = small_files if tokens.exists() else None
    return Origin(checkpoint, description, small_files, mapping, settings, shape)


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


N_BLOCKS, BLOCK_BYTES = 64, 1 << 16
HASH_FACT = "the hash of the weights of model.init_from"
"""Key of the hash among the facts of a checkpoint of adapters."""


def hash_of_weights(origin: Origin) -> str:
    """Hash of a checkpoint's checksums, or of samples from the files of a Hugging Face folder.

    Samples are a file's size, its beginning, and blocks spread over it: the weights of other
    models differ everywhere.
    """
    hasher = new_checksum()
    if origin.description is not None:
        for checksum in origin.description.part_checksums:
            hasher.update(checksum.encode())
        return hasher.hexdigest()
    for path in sorted(weight_files(origin.folder)):
        hasher.update(path.name.encode())
        for block in _blocks(path):
            hasher.update(block)
    return hasher.hexdigest()


def _blocks(path: Path) -> list[bytes]:
    try:
        n_bytes = path.stat().st_size
        step = max(BLOCK_BYTES, n_bytes // N_BLOCKS)
        with open_input(path) as file:
            blocks = [n_bytes.to_bytes(8, "little")]
            for start in range(0, n_bytes, step):
                file.seek(start)
                blocks.append(file.read(BLOCK_BYTES))
            return blocks
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
