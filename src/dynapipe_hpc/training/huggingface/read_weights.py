"""Reading of weights of a model on disk into parts of a model in memory."""

from collections.abc import Sequence
from dataclasses import replace

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.checkpoint.part_files import check_part
from dynapipe_hpc.training.checkpoint.parts import StatePart, whole_parts
from dynapipe_hpc.training.checkpoint.read_parts import CheckpointReader
from dynapipe_hpc.training.huggingface.folder import open_tensors
from dynapipe_hpc.training.huggingface.origin import Origin
from dynapipe_hpc.training.huggingface.read_rows import check_copies, read_part

WEIGHT, ADAPTER = "weight/", ".adapters."


def read_weights(origin: Origin, shape: ModelShape, parts: Sequence[StatePart]) -> None:
    """Overwrites parts with what a model on disk holds; adapters only if it has some.

    Args:
        origin: The model; a checkpoint has been verified before (`check_part`).
        shape: The model in memory, whose rows may have other lengths.
        parts: Parts of its state.

    Raises:
        InputError: The model on disk lacks weights, or they have other shapes.
    """
    if origin.description is not None:
        reader = CheckpointReader(origin.folder, len(origin.description.part_checksums))
        held = [part for part in parts if ADAPTER not in part.name or reader.has(part.name)]
        # Imports keep the types of their files.
        reader.fill(held, converting=True)
        return
    tensors = open_tensors(origin.folder, origin.page, shape)
    for part in parts:
        if ADAPTER not in part.name:
            read_part(tensors, replace(part, name=part.name.removeprefix(WEIGHT)))


def load_model(origin: Origin) -> StageOfFamily:
    """The whole model on one stage, in float32.

    Raises:
        InputError: The model on disk is damaged, or lacks weights.
    """
    shape = origin.shape
    if origin.description is None:
        check_copies(open_tensors(origin.folder, origin.page, shape))
    else:
        for rank, checksum in enumerate(origin.description.part_checksums):
            check_part(origin.folder, rank, checksum)
    stage = family_of(shape)(shape, range(shape.n_all_layers), first=True, last=True)
    read_weights(origin, shape, whole_parts(stage))
    return stage
