"""Compares the samples of a dataset with the checksums that were written along."""

from pathlib import Path

from dynapipe_hpc.data.dataset.content_hash import ContentHash
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile, DatasetPart
from dynapipe_hpc.data.dataset.open_dataset import AGAIN
from dynapipe_hpc.data.errors import InputError

SAMPLES_AT_A_TIME = 256


class SamplesDifferError(InputError):
    """Samples that are not those that were written."""


def verify_dataset(path: Path) -> str:
    """Reads all of a dataset.

    Returns:
        The `ContentHash` of all samples: the same for the same samples, in shards or not.

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
        raise InputError(
            f"{part.path}: has no checksum, as datasets of older versions; {AGAIN} to have one"
        )
    content = ContentHash()
    for block in dataset.blocks(part, SAMPLES_AT_A_TIME):
        content.add(block)
        everything.add(block)
    if content.hexdigest() != part.content_sha256:
        raise SamplesDifferError(
            f"{part.path}: samples {part.first} to {part.end - 1} of {dataset.path} are not what "
            f"was written: their checksum is {content.hexdigest()[:12]}, not "
            f"{part.content_sha256[:12]}; put a copy of the file back, or start the same "
            "dynapipe-hpc preprocess again with --force"
        )


def is_intact(path: Path) -> bool:
    """Whether a dataset can be read and is what was written."""
    try:
        verify_dataset(path)
    except InputError:
        return False
    return True
