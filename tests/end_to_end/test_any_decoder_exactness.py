"""A decoder of `transformers` in a pipeline trains as it does unsplit, and adapters as in peft."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.any_decoders import DECODERS, origin_of, random_decoder, saved_decoder
from tests.examples.pipeline_training import assert_equal, gradients
from tests.examples.training_case import (
    LAYOUTS,
    START_ID,
    Outcome,
    RandomTokens,
    make_rank,
    random_samples,
    random_split,
)
from tests.oracles.in_float64 import in_float64
from torch import Tensor, nn

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives

BATCHES = [random_samples(seed) for seed in (4, 5, 6)]
RECOMPUTED = (Recompute.NONE, Recompute.FULL)
LORA = Lora(rank=3, alpha=5.0)


def shape_of(name: str, folder: Path) -> TransformersShape:
    with in_float64(DECODERS[name].module):
        saved_decoder(name, folder)
    return origin_of(folder)[1]


@pytest.mark.parametrize("name", DECODERS)
def test_gradients_of_adapters_are_those_of_peft(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft: pip install '.[reference]'")
    shape = shape_of(name, tmp_path).model_copy(update={"lora": LORA})
    rank = make_rank(Cluster(device_memory_bytes=1), 0, SingleRankCollectives(), shape=shape)
    with in_float64(DECODERS[name].module):
        expected = of_peft(peft, name, shape, rank.module.state_dict())
    cluster = Cluster(n_stages=2, device_memory_bytes=1_000_000)
    split = random_split(BATCHES[0], 5, 1, RECOMPUTED, shape, LAYOUTS["mixed"])
    found = gradients(cluster, "1f1b", BATCHES[0], split, shape=shape)
    assert_equal(found, expected)


def of_peft(peft: Any, name: str, shape: TransformersShape, weights: dict[str, Tensor]) -> Outcome:
    """Loss of a batch and gradients of adapters, sample by sample."""
    base = random_decoder(name)
    own = {k: w for k, w in weights.items() if "lora" not in k}
    if shape.tied_head:
        own["lm_head.weight"] = own[shape.embedding]
    base.load_state_dict(own)
    modules = sorted({blocks[0] for blocks in shape.linear_layers.values()})
    config = peft.LoraConfig(
        r=LORA.rank, lora_alpha=LORA.alpha, target_modules=modules, lora_dropout=0.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of what peft calls in transformers
        model = peft.get_peft_model(base, config).double()
    theirs = {ours_of(key): p for key, p in model.named_parameters() if p.requires_grad}
    assert theirs.keys() == {key for key in weights if "lora" in key}
    for key, parameter in theirs.items():
        parameter.data.copy_(weights[key])
    n_targets = sum(sample.target_tokens for sample in BATCHES[0])
    total = 0.0
    for sample in BATCHES[0]:
        inputs, targets = (each.tolist() for each in RandomTokens()(sample)[:2])
        whole = [START_ID, *inputs, *targets]
        logits = model(input_ids=torch.tensor([whole[:-1]])).logits[0, len(inputs) :]
        losses = nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="sum")
        torch.autograd.backward(losses / n_targets)
        total += losses.item() / n_targets
    return Outcome([total], [], {key: p.grad for key, p in theirs.items()})


def ours_of(name: str) -> str:
    path, _, rest = name.removeprefix("base_model.model.").partition(".lora_")
    return f"{path}.adapters.{path.rpartition('.')[2]}.lora_{rest[0].lower()}"
