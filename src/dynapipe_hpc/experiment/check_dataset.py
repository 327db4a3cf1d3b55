"""The check that a model can be trained on datasets: tokenizer, vocabulary, kind of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.vocabulary import (
    BYTES_SHA256,
    MODEL_FILE,
    file_sha256,
    folder_sha256,
)
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import more_rows
from dynapipe_hpc.training.huggingface.origin import Origin

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from pathlib import Path

    from dynapipe_hpc.data.dataset.dataset_file import Dataset
    from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader


def check_dataset(config: ExperimentConfig, origin: Origin | None, dataset: Dataset) -> None:
    """Refuses datasets that the model of an experiment cannot be trained on.

    `origin` is the model that the experiment begins with, if it names one.
    """
    # The tokenizer first: a different number of tokens may only follow from a different tokenizer.
    if config.data.check_tokenizer and origin:
        _check_tokenizer(origin, dataset)
    n_tokens, n_rows = dataset.header.vocab_size, config.model.vocab_size
    if n_tokens > n_rows:
        its_tokenizer = f"{config.data.paths[0]}: its tokenizer has {n_tokens} tokens"
        if config.model.init_from is None:
            raise InputError(
                f"{its_tokenizer}, but model.vocab_size is {n_rows}; raise it to at least "
                f"{n_tokens}"
            )
        raise InputError(
            f"{its_tokenizer}, but the embedding of model.init_from = '{config.model.init_from}' "
            f"has {n_rows} rows; {more_rows(n_tokens)}; or preprocess with tokens that the model "
            "has"
        )
    for file in dataset.files:
        if file.header.start_id is None and config.model.has_target_rows:
            raise InputError(
                f"{file.path}: has no start token, but the decoder of a {config.model.family} "
                "reads one before every target; make it again with dynapipe-hpc preprocess --start "
                "TOKEN"
            )
    check_pairs(config, dataset)


def check_pairs(config: ExperimentConfig, dataset: Dataset) -> None:
    """Refuses a dataset if the objective does not train its kind of samples."""
    objective, trains_pairs = config.training.objective, config.training.preference_loss is not None
    for file in dataset.files:
        if file.header.has_pairs and not trains_pairs:
            raise InputError(
                f'{file.path}: holds preference pairs, but training.objective is "{objective}"; '
                'set it to "dpo", or make a dataset of the answers that are to be learned'
            )
        if trains_pairs and not file.header.has_pairs:
            raise InputError(
                f'{file.path}: holds no preference pairs, which training.objective = "{objective}" '
                "compares; make a dataset of pairs with dynapipe-hpc preprocess"
            )


def _check_tokenizer(origin: Origin, dataset: Dataset) -> None:
    file, folder = dataset.files[0], origin.small_files  # all have the same tokenizer
    if folder is None or (sha256 := folder_sha256(folder)) is None:
        return
    made_with = file.header.tokenizer_sha256
    alone = folder / MODEL_FILE
    is_same = made_with == sha256 or (alone.exists() and made_with == file_sha256(alone))
    if not is_same and not _has_same_tokens(file.header, folder):
        raise InputError(
            f"{file.path}: its tokens were made by {file.header.tokenizer_name} "
            f"({file.header.vocab_size:,} tokens), not by the tokenizer of model.init_from = "
            f"'{origin.folder}', for which the same ids mean other text; make it again with "
            f"dynapipe-hpc preprocess --tokenizer {folder}, or, if the ids do mean the same, set "
            "data.check_tokenizer to false"
        )


def _has_same_tokens(header: DatasetHeader, folder: Path) -> bool:
    if header.tokenizer_sha256 == BYTES_SHA256:
        return False
    # Loads `transformers`, so only where files differ.
    from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer

    try:
        tokenizer = read_tokenizer(folder)
    except InputError as error:
        raise InputError(
            f"{error}; if a dataset was made with the same tokenizer, set data.check_tokenizer to "
            "false"
        ) from None
    return tokenizer.vocabulary_sha256 == header.vocabulary_sha256
