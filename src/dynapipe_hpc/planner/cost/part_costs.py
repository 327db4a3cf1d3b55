"""Costs of the single parts of a stage, derived from any cost model."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray
from dynapipe_hpc.planner.cost.from_config import CostSource, costs_of

# Layers of the stages that are compared, per side: first, middle, middle with two layers, last.
PROBE = (1, 1, 2, 1)


@dataclass(frozen=True, slots=True)
class PartCosts:
    """Costs of the parts of a stage, which add up: times, or bytes.

    Attributes:
        n_first_side: Number of layers of the encoder, or of a decoder-only model.
        first_layer: Cost of one of these layers.
        second_layer: Cost of a layer of a decoder that follows an encoder; 0 without one.
        first_side: Cost of having any layers of the first kind on a stage.
        second_side: Cost of having any layers of the second kind on a stage.
        first: Additional cost of the first stage.
        turn: Additional cost of the stage where a decoder that follows an encoder begins.
        last: Additional cost of the last stage.
    """

    n_first_side: int
    first_layer: float
    second_layer: float
    first_side: float
    second_side: float
    first: float
    turn: float
    last: float

    @classmethod
    def of_probe(cls, costs: FloatArray, shape: ModelShape) -> Self:
        """Costs of parts from those of the stages of `probe_costs`."""
        first, middle, two, last = costs[:4]
        layer = two - middle
        n_first_side, *n_others = shape.layer_counts.values()
        if not n_others:
            ends = (first - middle, 0.0, last - middle)
            return cls(n_first_side, layer, 0.0, middle - layer, 0.0, *ends)
        turn, after, two_after, last = costs[4:]
        second = two_after - after
        ends = (first - middle, turn - after, last - after)
        return cls(n_first_side, layer, second, middle - layer, after - second, *ends)

    def on_stages(self, n_layers: int, n_stages: int, impossible: float = np.inf) -> FloatArray:
        """Cost of every stage, if it held the layers i to j - 1 of all `n_layers`.

        Returns:
            Shape (n_stages, n_layers + 1, n_layers + 1), by stage, i and j; `impossible` where
            the stage would hold no layer.
        """
        edges = np.arange(n_layers + 1)
        of_first_side = np.minimum(edges, self.n_first_side)
        n_first = of_first_side - of_first_side[:, np.newaxis]
        n_second = edges - edges[:, np.newaxis] - n_first
        held = n_first * self.first_layer + n_second * self.second_layer
        held = held + (n_first > 0) * self.first_side + (n_second > 0) * self.second_side
        table = np.repeat(held[np.newaxis], n_stages, axis=0)
        table[1:, : self.n_first_side + 1, self.n_first_side + 1 :] += self.turn
        table[0] += self.first
        table[-1] += self.last
        table[:, np.subtract.outer(edges, edges) >= 0] = impossible
        return table


def probe_costs(source: CostSource, shape: ModelShape, cluster: Cluster) -> CostModel:
    """The costs of a pipeline whose stages differ in one part each, see `PROBE`.

    Raises:
        InputError: As `costs_of`.
    """
    placement = Placement(PROBE * len(shape.layer_counts))
    probe = shape.with_layers(sum(PROBE))
    stages = cluster.model_copy(update={"n_stages": placement.n_stages})
    return costs_of(source, probe, placement, stages)[0]
