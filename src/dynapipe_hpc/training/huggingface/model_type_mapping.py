"""Mapping of a model type: names of settings and tensors at Hugging Face, and here."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dynapipe_hpc.training.huggingface.settings import Settings
from dynapipe_hpc.training.huggingface.tensor_map import TensorMap

Values = dict[str, Any]  # of a JSON object, or of the [model] table
LONGEST = 2**24
"""Most tokens of a row that the [model] table allows."""


@dataclass(frozen=True, slots=True)
class ModelTypeMapping:
    """Mapping of a `model_type` of Hugging Face.

    Attributes:
        model_type: Name of the type in `config.json`.
        architecture: Class of `transformers` that computes logits.
        family: Our family of these models.
        prefix: Prefix of names of tensors that files of the model without a head leave out.
        model: Function that turns settings into values of the [model] table; it refuses settings
            that the family does not compute.
        config: Function that turns a model into values of `config.json`; like those below, it
            takes shapes of the family.
        dropout: Function that turns a model into those values of `config.json` that say what
            training drops; a run may have others than the model that it began with.
        fits: Function that tells whether `config` can describe a model.
        tensors: Function that lists all weights of a model.
        copies: Function that lists tensors that a file may hold although they are copies of
            others, by name, with the name of the other.
        ignored: Pattern of the names of tensors that may be in files and are not weights.
        longest: Function that tells up to how many tokens a row may be made longer or shorter
            than the settings say; None where the number of weights depends on it.
    """

    model_type: str
    architecture: str
    family: str
    prefix: str
    model: Callable[[Settings], Values]
    config: Callable[[Any], Values]
    dropout: Callable[[Any], Values]
    fits: Callable[[Any], bool]
    tensors: Callable[[Any], Iterable[TensorMap]]
    copies: Callable[[Any], Mapping[str, str]]
    ignored: re.Pattern[str]
    longest: Callable[[Settings], int | None]
