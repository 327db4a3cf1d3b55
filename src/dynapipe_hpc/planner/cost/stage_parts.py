"""What a pipeline stage is made of."""

import numpy as np

from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.cost_model import FloatArray

LAYER, EMBEDDING, HEAD = "layer", "embedding", "head"
# What a pass through a stage takes besides its layers.
STAGE = "stage"


def parts_of_stages(shape: ModelShape, n_stages: int) -> dict[str, FloatArray]:
    """How many of each kind of layer a stage holds.

    The embedding is on the first stage; the head, which includes the loss, on the last; what
    any stage takes besides its layers counts once on each.

    Returns:
        By kind, an array of shape (n_stages,).
    """
    n_layers = [len(shape.layers_of_stage(stage, n_stages)) for stage in range(n_stages)]
    parts = {kind: np.zeros(n_stages) for kind in (EMBEDDING, HEAD)}
    parts[EMBEDDING][0] = parts[HEAD][-1] = 1
    return {LAYER: np.array(n_layers, dtype=np.float64), **parts, STAGE: np.ones(n_stages)}


def parameters_of(shape: ModelShape) -> dict[str, int]:
    """Number of parameters of one layer, of the embedding and of the head.

    The logits have their own weights: with the embedding's, the first and the last stage
    would have to exchange gradients.
    """
    width, inner = shape.hidden_size, shape.ffn_size
    attention = 4 * width * width + 4 * width
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    return {
        LAYER: attention + feed_forward + 2 * norm,
        EMBEDDING: (shape.vocab_size + shape.max_tokens) * width,
        HEAD: shape.vocab_size * width + norm,
    }
