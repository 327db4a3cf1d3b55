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
        init_from: Folder whose weights a new run begins with: a Hugging Face model, a checkpoint,
            or a run (its newest checkpoint). Sizes that the table leaves out are those of that
            model; others must be the same. None to draw weights at random.
    """

    layers_per_stage: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    init_from: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _every_layer_has_a_stage(self) -> Self:
        if self.placement and self.placement.n_layers != self.n_all_layers:
            raise ValueError(
                f"layers_per_stage {list(self.placement.layers_per_stage)} adds up to "
                f"{self.placement.n_layers}, but n_layers is {self.layers_text}, in total "
                f"{self.n_all_layers}; change either, or leave layers_per_stage out"
            )
        return self

    @property
    def placement(self) -> Placement | None:
        """The configured placement; None if it is to be chosen."""
        return Placement(self.layers_per_stage) if self.layers_per_stage else None
