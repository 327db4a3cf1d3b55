"""Reader of the weights of a model on disk, into parts of a model in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.checkpoint.part_files import check_part
from dynapipe_hpc.training.checkpoint.parts import CheckpointReader, StatePart, whole_parts
from dynapipe_hpc.training.huggingface.folder import ModelTensors, open_tensors
from dynapipe_hpc.training.huggingface.origin import Origin
from dynapipe_hpc.training.huggingface.read_rows import check_copies, read_part

WEIGHT, ADAPTER = "weight/", ".adapters."


@dataclass(frozen=True, slots=True)
class OriginWeights:
    """Weights of a model on disk, whose index has been read.

    Attributes:
        source: Tensors of a folder of Hugging Face, or the reader of a checkpoint.
    """

    source: ModelTensors | CheckpointReader

    def has(self, name: str) -> bool:
        """Whether the model on disk holds a part of a state, by its kind and name."""
        if isinstance(self.source, CheckpointReader):
            return self.source.has(name)
        return name.removeprefix(WEIGHT) in self.source.maps

    def read(self, parts: Sequence[StatePart]) -> None:
        """Overwrites parts with what the model on disk holds; adapters only if it has some.

        Args:
            parts: Parts of the state of a model, whose rows may have other lengths.

        Raises:
            InputError: The model on disk lacks weights, or they have other shapes.
        """
        held = [part for part in parts if ADAPTER not in part.name or self.has(part.name)]
        if isinstance(self.source, CheckpointReader):
            # Imports keep the types of their files.
            self.source.fill(held, converting=True)
            return
        for part in held:
            read_part(self.source, replace(part, name=part.name.removeprefix(WEIGHT)))


def open_weights(
    origin: Origin, shape: ModelShape, *, compares_copies: bool = True
) -> OriginWeights:
    """Opens the weights of a model on disk.

    Args:
        origin: The model; a checkpoint has been verified before (`check_part`).
        shape: The model in memory, whose rows may have other lengths.
        compares_copies: Whether tensors that a folder of Hugging Face has twice are compared,
            which reads them.

    Raises:
        InputError: The files are damaged, or are not those of this model.
    """
    if origin.description is not None:
        checksums = origin.description.part_checksums
        return OriginWeights(CheckpointReader(origin.folder, len(checksums)))
    tensors = open_tensors(origin.folder, origin.page, shape)
    if compares_copies:
        check_copies(tensors)
    return OriginWeights(tensors)


def load_model(origin: Origin) -> StageOfFamily:
    """The whole model on one stage, in float32.

    Raises:
        InputError: The model on disk is damaged, or lacks weights.
    """
    shape = origin.shape
    if origin.description is not None:
        for rank, checksum in enumerate(origin.description.part_checksums):
            check_part(origin.folder, rank, checksum)
    weights = open_weights(origin, shape)
    stage = family_of(shape)(shape, range(shape.n_all_layers), first=True, last=True)
    weights.read(whole_parts(stage))
    return stage
