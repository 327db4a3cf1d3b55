"""Weights of which several stages hold a copy."""

from collections.abc import Mapping

from dynapipe_hpc.plan.model_shape import ModelShape

EMBEDDING, ENCODER_BIAS, DECODER_BIAS = (
    "embedding.weight",
    "encoder_bias.weight",
    "decoder_bias.weight",
)


def tied_weights(shape: ModelShape, n_stages: int) -> Mapping[str, tuple[int, ...]]:
    """By name, the stages that hold a copy of a weight that is on more than one, ascending.

    Of a T5, the embedding is where inputs enter, where the decoder begins, and at the head; the
    relative bias of a side is wherever layers of that side are. Nothing of a GPT is tied.
    """
    if not shape.is_encoder_decoder:
        return {}
    stages, n = range(n_stages), shape.n_layers
    layers = [shape.layers_of_stage(stage, n_stages) for stage in stages]
    ends = {0, *(stage for stage in stages if n in layers[stage]), n_stages - 1}
    holders = {
        EMBEDDING: tuple(sorted(ends)),
        ENCODER_BIAS: tuple(stage for stage in stages if layers[stage].start < n),
        DECODER_BIAS: tuple(stage for stage in stages if layers[stage].stop > n),
    }
    return {name: held_by for name, held_by in holders.items() if len(held_by) > 1}
