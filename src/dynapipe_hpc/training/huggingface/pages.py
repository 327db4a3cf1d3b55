"""The pages of all model types, and the one that describes a model."""

import json
from collections.abc import Mapping
from pathlib import Path

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.huggingface.any_decoder import (
    FAMILY,
    is_decoder,
    media_problem,
    page_of_decoder,
)
from dynapipe_hpc.training.huggingface.gpt2 import GPT2
from dynapipe_hpc.training.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from dynapipe_hpc.training.huggingface.model_type_mapping import ModelTypeMapping
from dynapipe_hpc.training.huggingface.settings import Settings
from dynapipe_hpc.training.huggingface.t5 import MT5, T5

_ALL = (GPT2, T5, MT5, LLAMA, MISTRAL, QWEN2, QWEN3)
PAGES: Mapping[str, ModelTypeMapping] = {page.model_type: page for page in _ALL}


def page_of(settings: Settings, family: str | None = None) -> ModelTypeMapping:
    """The page of a model's type.

    Args:
        settings: Settings of the model.
        family: The family that is to train it; None for one of this package, or else
            `transformers`.
    """
    model_type = settings.get("model_type", "")
    if model_type not in PAGES and not is_decoder(settings):
        if problem := media_problem(settings):
            raise InputError(f"{settings.path}: {problem}")
        raise InputError(
            f"{settings.path}: 'model_type' is {quoted(model_type)}, which is not supported, only "
            f"{', '.join(PAGES)}, and decoders of transformers, whose 'architectures' name a "
            "class ...ForCausalLM; choose another model"
        )
    if settings.get("quantization_config") is not None:
        raise InputError(
            f"{settings.path}: has a 'quantization_config': its tensors are no weights that can "
            "be trained; take the model that was quantized"
        )
    if family == FAMILY or model_type not in PAGES:
        return page_of_decoder(settings)
    return PAGES[model_type]


def has_another_family(page: ModelTypeMapping, settings: Settings) -> bool:
    """Whether `transformers` is another family that may train a model."""
    return page.family == LLAMA.family and is_decoder(settings)


def page_for(shape: ModelShape) -> ModelTypeMapping:
    """The first page that describes a model."""
    if isinstance(shape, TransformersShape):
        return page_of_decoder(Settings(Path("model.settings"), json.loads(shape.settings)))
    for page in PAGES.values():
        if page.family == shape.family and page.fits(shape):
            return page
    raise InputError(
        f"no type of models in Hugging Face is a {shape.family} with these values of qkv_bias, "
        "output_bias and qk_norm; set but one of qkv_bias and qk_norm, or both biases and a "
        "hidden_size that is a multiple of n_heads"
    )
