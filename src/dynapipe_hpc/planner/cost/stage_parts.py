"""What a pipeline stage is made of."""

import numpy as np

from dynapipe_hpc.plan.model_shape import N_BUCKETS, ModelShape
from dynapipe_hpc.planner.cost.cost_model import FloatArray

LAYER, EMBEDDING, HEAD = "layer", "embedding", "head"
ENCODER, DECODER = "encoder", "decoder"  # layers of a T5
# What the layers of a side share on a stage: its relative bias.
ENCODER_SIDE, DECODER_SIDE = "encoder_side", "decoder_side"
# What a pass through a stage takes besides its layers.
STAGE = "stage"
OF_PAIRS = (DECODER, DECODER_SIDE)  # depend on the lengths of inputs and of targets


def parts_of_stages(shape: ModelShape, n_stages: int) -> dict[str, FloatArray]:
    """How many of each kind of layer a stage holds.

    The embedding is on the first stage, and a copy of it where the decoder of a T5 begins; the
    head, which includes the loss, on the last; what the layers of a side of a T5 share counts
    once on each stage that holds any, what any stage takes besides its layers once on each.

    Returns:
        By kind, an array of shape (n_stages,).
    """
    layers = [shape.layers_of_stage(stage, n_stages) for stage in range(n_stages)]
    embedding, head = np.zeros(n_stages), np.zeros(n_stages)
    embedding[0] = head[-1] = 1
    n_layers = np.array([len(of_stage) for of_stage in layers], dtype=np.float64)
    rest = {EMBEDDING: embedding, HEAD: head, STAGE: np.ones(n_stages)}
    if not shape.is_encoder_decoder:
        return {LAYER: n_layers, **rest}
    encoders = np.array([float(sum(i < shape.n_layers for i in held)) for held in layers])
    embedding[shape.first_decoder_stage(n_stages)] = 1
    of_layers = {ENCODER: encoders, DECODER: n_layers - encoders}
    sides = {ENCODER_SIDE: encoders.clip(max=1), DECODER_SIDE: of_layers[DECODER].clip(max=1)}
    return {**of_layers, **sides, **rest}


def boundary_sizes(shape: ModelShape, n_stages: int) -> FloatArray:
    """How many numbers per token a stage hands to the next one.

    Of a T5, the encoder's activation, up to its output; from the first stage with layers of the
    decoder on, its output and the decoder's activation.

    Returns:
        Shape (n_stages, 2): per input token (or token of a decoder-only model), and per target
        token.
    """
    sizes = np.zeros((n_stages, 2))
    sizes[:-1, 0] = shape.hidden_size
    first_decoder_stage = shape.first_decoder_stage(n_stages)
    if first_decoder_stage is not None:
        sizes[first_decoder_stage:-1, 1] = shape.hidden_size
    return sizes


def parameters_of(shape: ModelShape, n_shards: int = 1) -> dict[str, int]:
    """Number of parameters of one part of a model, on one shard.

    The logits of a GPT have their own weights: with the embedding's, the first and the last
    stage would have to exchange gradients. Those of a T5 have a copy of the embedding's; with its
    head the final norms of both sides are counted.
    """
    return _of_t5(shape, n_shards) if shape.is_encoder_decoder else _of_gpt(shape, n_shards)


def _of_t5(shape: ModelShape, n_shards: int) -> dict[str, int]:
    width, vocabulary = shape.hidden_size, shape.ids_per_shard(n_shards)
    attention = 4 * width * shape.attention_size // n_shards
    feed_forward = 2 * width * shape.ffn_size // n_shards
    return {
        ENCODER: attention + feed_forward + 2 * width,
        DECODER: 2 * attention + feed_forward + 3 * width,
        EMBEDDING: vocabulary * width,
        HEAD: vocabulary * width + 2 * width,
        **dict.fromkeys((ENCODER_SIDE, DECODER_SIDE), N_BUCKETS * shape.n_heads // n_shards),
    }


def _of_gpt(shape: ModelShape, n_shards: int) -> dict[str, int]:
    width, inner = shape.hidden_size, shape.ffn_size // n_shards
    heads, vocabulary = width // n_shards, shape.ids_per_shard(n_shards)
    attention = 4 * width * heads + 3 * heads + width
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    return {
        LAYER: attention + feed_forward + 2 * norm,
        EMBEDDING: (vocabulary + shape.max_tokens) * width,
        HEAD: vocabulary * width + norm,
    }
