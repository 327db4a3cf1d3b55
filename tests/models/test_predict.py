"""Logits of tokens one after another, with what earlier passes have kept."""

import pytest
import torch
from tests.examples.training_case import LLAMA_SHAPE, SHAPE, name_of
from torch import nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.key_value_cache import KeyValueCache
from dynapipe_hpc.training.generate import logits_of

TOKENS = [int(i) for i in torch.randint(30, (20,), generator=torch.manual_seed(3))]


@pytest.mark.parametrize("n_at_first", [1, 7])
@pytest.mark.parametrize("shape", [SHAPE, LLAMA_SHAPE], ids=name_of)
def test_logits_are_the_same_with_kept_keys_and_values(shape: ModelShape, n_at_first: int) -> None:
    layers = range(shape.n_all_layers)
    stage = family_of(shape)(shape, layers, first=True, last=True, dtype=torch.float64)
    for seed, weight in enumerate(stage.parameters()):
        nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
    kv_cache = KeyValueCache()
    passes = [TOKENS[:n_at_first], *([token] for token in TOKENS[n_at_first:])]
    found = torch.cat([logits_of(stage, tokens, kv_cache=kv_cache) for tokens in passes])
    torch.testing.assert_close(found, logits_of(stage, TOKENS), rtol=1e-11, atol=1e-11)
