"""Placement of a model's layers on pipeline stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Boundary


@dataclass(frozen=True, slots=True)
class Placement:
    """Numbers of consecutive layers on the stages; encoder layers come before decoder layers."""

    layers_per_stage: tuple[int, ...]

    @classmethod
    def equal_shares(cls, n_layers: int, n_stages: int) -> Self:
        """Equal numbers of layers; the remainder is spread over stages in the middle.

        The first and the last stage also hold the embedding and the head, so the stages between
        them take the remaining layers first.
        """
        share, left_over = divmod(n_layers, n_stages)
        by_room = sorted(range(n_stages), key=lambda s: (s in (0, n_stages - 1), s))
        takes_more = set(by_room[:left_over])
        return cls(tuple(share + (stage in takes_more) for stage in range(n_stages)))

    @property
    def n_layers(self) -> int:
        return sum(self.layers_per_stage)

    @property
    def n_stages(self) -> int:
        return len(self.layers_per_stage)

    @property
    def layers(self) -> list[range]:
        edges = accumulate(self.layers_per_stage, initial=0)
        return [range(start, stop) for start, stop in pairwise(edges)]

    def parts(self, shape: ModelShape) -> list[Mapping[str, int]]:
        return [
            shape.held(layers, first=stage == 0, last=stage == self.n_stages - 1)
            for stage, layers in enumerate(self.layers)
        ]

    def boundaries(self, shape: ModelShape) -> list[Boundary]:
        return [shape.boundary(layers) for layers in self.layers]
