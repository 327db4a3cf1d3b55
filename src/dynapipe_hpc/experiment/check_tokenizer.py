"""Comparison of the tokenizer of a dataset with that of the model that a run begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.vocabulary import (
    BYTES_SHA256,
    FolderVocabulary,
    read_vocabulary,
    vocabulary_sha256,
)
from dynapipe_hpc.training.huggingface.origin import Origin

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.joined_datasets import Dataset


def check_tokenizer(origin: Origin, dataset: Dataset) -> None:
    """Refuses datasets whose tokens mean something else to the model that a run begins with.

    A model without files of a tokenizer is not compared.

    Raises:
        InputError: A dataset was made with another tokenizer than that of the model.
    """
    if origin.small_files is None or (of_model := read_vocabulary(origin.small_files)) is None:
        return
    for file in dataset.files:
        if not _is_same(file.header, of_model):
            raise InputError(
                f"{file.path}: its tokens are of the tokenizer {file.header.tokenizer_name} "
                f"({file.header.vocab_size:,} tokens), not of that of model.init_from = "
                f"'{origin.folder}' ({of_model.name}), to which the same ids mean other "
                "text; make it again with dynapipe-hpc preprocess --tokenizer "
                f"{origin.small_files}, or, if the ids do mean the same, set data.check_tokenizer "
                "to false"
            )


def _is_same(header: DatasetHeader, of_model: FolderVocabulary) -> bool:
    """Whether tokens are the same; of files that are not compared, whether they are no bytes."""
    if not of_model.sha256:
        return header.tokenizer_sha256 != BYTES_SHA256
    if header.tokenizer_sha256 == of_model.sha256:
        return True
    if header.vocabulary_sha256:
        return header.vocabulary_sha256 == vocabulary_sha256(of_model.ids)
    # Older datasets know only how many tokens there are.
    return header.vocab_size == of_model.size
