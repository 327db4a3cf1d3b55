"""The families of models."""

from dynapipe_hpc.models.gpt import GptStage
from dynapipe_hpc.models.t5 import T5Stage
from dynapipe_hpc.plan.model_shape import ModelShape

StageOfFamily = GptStage | T5Stage


def family_of(shape: ModelShape) -> type[GptStage] | type[T5Stage]:
    """What the stages of a model are made of."""
    return T5Stage if shape.is_encoder_decoder else GptStage
