"""The [model] table: a model and, optionally, the layers of every stage."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.plan.model_shape import ModelShape


class ModelConfig(ModelShape):
    """The [model] table.

    Attributes:
        layers_per_stage: Number of layers on every pipeline stage, those of an encoder first; None
            to choose them by cost before planning starts, see `place_layers`.
    """

    layers_per_stage: tuple[Annotated[int, Field(ge=1)], ...] | None = None

    @model_validator(mode="after")
    def _every_layer_has_a_stage(self) -> Self:
        if self.placement and self.placement.n_layers != self.n_all_layers:
            sides = " on each of two sides" if len(self.architecture.layer_kinds) == 2 else ""
            raise ValueError(
                f"layers_per_stage {list(self.placement.layers_per_stage)} adds up to "
                f"{self.placement.n_layers}, but n_layers is {self.n_layers}{sides}, in total "
                f"{self.n_all_layers}; change either, or leave layers_per_stage out"
            )
        return self

    @property
    def placement(self) -> Placement | None:
        """The configured placement; None if it is to be chosen."""
        return Placement(self.layers_per_stage) if self.layers_per_stage else None
