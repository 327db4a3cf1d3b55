from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.training.checkpoint.folder import Description
from dynapipe_hpc.training.checkpoint.part_files import check_parts, read_tensors
from dynapipe_hpc.training.checkpoint.parts import CheckpointReader, StatePart, write_parts
from dynapipe_hpc.training.huggingface.import_export import NOTHING_DONE


def write_weights(checkpoint: Path, shape: ModelShape, tensors: Mapping[str, Tensor]) -> None:
    """Writes a checkpoint of a model that holds these weights, each in one part."""
    parts = [
        StatePart(f"weight/{name}", tensor.shape, torch.Size([0] * tensor.ndim), tensor.detach())
        for name, tensor in tensors.items()
    ]
    facts = {f"model.{key}": value for key, value in shape.model_dump(mode="json").items()}
    checkpoint.mkdir(parents=True)
    checksum = write_parts(checkpoint, 0, parts)
    Description(4, NOTHING_DONE, facts, (checksum,)).write(checkpoint)


def load_weights(checkpoint: Path) -> dict[str, Tensor]:
    checksums = Description.read(checkpoint).part_checksums
    check_parts(checkpoint, checksums)
    return unsplit(checkpoint, len(checksums), "weight")


def unsplit(checkpoint: Path, n_parts: int, kind: str) -> dict[str, Tensor]:
    """All tensors of a kind, of which every number is there once."""
    reader, tensors = CheckpointReader(checkpoint, n_parts), {}
    for name, by_rank in read_tensors(checkpoint, n_parts).items():
        if name.startswith(f"{kind}/"):
            n_rows = next(iter(by_rank.values())).shape[0]
            values = reader.rows(name, 0, n_rows)
            assert sum(each.n_bytes for each in by_rank.values()) == values.nbytes, name
            tensors[name.removeprefix(f"{kind}/")] = values
    return tensors


def different(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Names that only one side has, or whose tensors differ."""
    return [
        name
        for name in sorted({*found, *expected})
        if name not in found or name not in expected or not torch.equal(found[name], expected[name])
    ]
