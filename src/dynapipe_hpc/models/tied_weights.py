"""Weights of which several stages hold a copy."""

from collections.abc import Mapping
from typing import NamedTuple

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING
from dynapipe_hpc.architecture.placement import Placement


class TiedWeight(NamedTuple):
    """A weight of which several stages hold a copy.

    `stages`: Stages that hold it, ascending. `in_pairs`: Whether the stages exchange it in pairs:
    the embedding, which is large and on few stages. Otherwise it is small, and all stages of a
    replica sum it.
    """

    stages: tuple[int, ...]
    n_numbers: int
    in_pairs: bool


Tied = Mapping[str, TiedWeight]
"""Tied weights by name."""


def tied_weights(shape: ModelShape, placement: Placement, n_shards: int) -> Tied:
    """The weights that are on more than one stage; none if they are frozen."""
    if shape.lora:
        return {}
    held, weights = placement.parts(shape), shape.weights(n_shards)
    tied = {
        name: TiedWeight(
            stages=tuple(s for s, held_by in enumerate(held) if any(held_by[k] for k in kinds)),
            n_numbers=weights[kinds[0]].n_first,
            in_pairs=EMBEDDING in kinds,
        )
        for name, kinds in shape.tied.items()
    }
    return {name: weight for name, weight in tied.items() if len(weight.stages) > 1}


def paired_stages(tied: Tied) -> tuple[tuple[int, ...], ...]:
    return tuple(weight.stages for weight in tied.values() if weight.in_pairs)
