"""Verification of a dataset: compares its samples with the recorded checksums."""

from pathlib import Path

from dynapipe_hpc.data.dataset.content_hash import ContentHash
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile, DatasetPart
from dynapipe_hpc.data.dataset.open_dataset import AGAIN
from dynapipe_hpc.data.errors import InputError

SAMPLES_AT_A_TIME = 256


class SamplesDifferError(InputError):
    """Samples differ from those that were written."""


def verify_dataset(path: Path) -> str:
    """Reads a complete dataset and compares it with its checksums.

    Returns:
        The `ContentHash` of all samples, which does not depend on how they are split into shards.

    Raises:
        SamplesDifferError: A file differs from its checksum.
        InputError: A file cannot be read, or has no checksum.
    """
    everything = ContentHash()
    with DatasetFile(path) as dataset:
        for part in dataset.parts:
            _verify_part(dataset, part, everything)
    return everything.hexdigest()


def _verify_part(dataset: DatasetFile, part: DatasetPart, everything: ContentHash) -> None:
    if not part.content_sha256:
        raise InputError(f"{part.path}: has no checksum (written by an older version); {AGAIN}")
    content = ContentHash()
    for block in dataset.blocks(part, SAMPLES_AT_A_TIME):
        content.add(block)
        everything.add(block)
    if content.hexdigest() != part.content_sha256:
        raise SamplesDifferError(
            f"{part.path}: samples {part.first} to {part.end - 1} of {dataset.path} are damaged: "
            f"their checksum is {content.hexdigest()[:12]}, not "
            f"{part.content_sha256[:12]}; restore the file from a copy, or repeat the same "
            "dynapipe-hpc preprocess with --force"
        )


def is_intact(path: Path) -> bool:
    """Whether a dataset can be read and is undamaged."""
    try:
        verify_dataset(path)
    except InputError:
        return False
    return True
