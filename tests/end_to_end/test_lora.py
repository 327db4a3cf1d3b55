"""Adapters train as those of the unsplit model of `peft` do, however training is split."""

import math
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from tests.examples.any_decoders import DECODERS, origin_of, random_decoder, saved_decoder
from tests.examples.pipeline_training import MODES, assert_equal, gradients, three_steps
from tests.examples.training_case import (
    CONFIG,
    GATED_T5_SHAPE,
    LAYOUTS,
    PLAIN_LLAMA_SHAPE,
    SHAPE,
    START_ID,
    T5_SHAPE,
    Outcome,
    RandomTokens,
    make_rank,
    random_samples,
    random_split,
)
from tests.oracles.in_float64 import in_float64, their_losses
from tests.oracles.peft_models import PeftModel
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives

SHAPES = {
    "gpt": SHAPE.model_copy(update={"lora": Lora(rank=3, alpha=5.0)}),
    "gpt, some": SHAPE.model_copy(update={"lora": Lora(rank=2, targets=("query_key_value", "up"))}),
    "llama": PLAIN_LLAMA_SHAPE.model_copy(
        update={"hidden_size": 16, "n_heads": 8, "n_kv_heads": 4, "lora": Lora(rank=3)}
    ),
    "t5": T5_SHAPE.model_copy(update={"lora": Lora(rank=3, alpha=5.0)}),
    "gated t5": GATED_T5_SHAPE.model_copy(update={"lora": Lora(rank=2, targets=("key", "up"))}),
    "t5, some": T5_SHAPE.model_copy(update={"lora": Lora(rank=2, targets=("query", "value"))}),
}
every_shape = pytest.mark.parametrize(
    "name",
    [
        "gpt",
        pytest.param("gpt, some", marks=pytest.mark.slow),
        "llama",
        pytest.param("t5", marks=pytest.mark.slow),
        pytest.param("gated t5", marks=pytest.mark.slow),
        "t5, some",
    ],
)
BATCHES = [random_samples(seed) for seed in (4, 5, 6)]


class Way(NamedTuple):
    stages: int = 1
    replicas: int = 1
    shards: int = 1
    spread: bool = False
    schedule: str = "1f1b"
    mode: str = "none"
    zero_stage: Literal[0, 1] = 0
    layouts: str = "padded"

    @property
    def cluster(self) -> Cluster:
        return Cluster(
            n_stages=self.stages,
            n_replicas=self.replicas,
            n_shards=self.shards,
            sequence_parallel=self.spread,
            device_memory_bytes=1_000_000,
            zero_stage=self.zero_stage,
        )

    @property
    def of_layouts(self) -> tuple[Layout, ...]:
        return LAYOUTS.get(self.layouts, (Layout.PADDED,))


def loss_and_gradients(
    losses: Callable[[list[int], list[int]], Tensor], samples: list[Sample]
) -> float:
    """The loss of a batch, sample by sample, by losses of tokens; adds to the gradients."""
    n_targets, total = sum(s.target_tokens for s in samples), 0.0
    for sample in samples:
        inputs, targets = (each.tolist() for each in RandomTokens()(sample)[:2])
        loss = losses(inputs, targets).sum() / n_targets
        torch.autograd.backward(loss)
        total += loss.item()
    return total


@cache
def expected_steps(name: str) -> Outcome:
    """The adapters after a step of AdamW on each batch."""
    shape, outcome = SHAPES[name], Outcome([], [], {})
    rank = make_rank(Cluster(device_memory_bytes=1), 0, SingleRankCollectives(), shape=shape)
    model = PeftModel(shape, rank.module.state_dict())
    parameters = [p for p in model.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, betas=CONFIG.betas, eps=1e-8, weight_decay=CONFIG.weight_decay
    )
    losses = partial(model.losses, start=START_ID)
    for samples, warmed in zip(
        BATCHES, (0.5, 1.0, 0.1 + 0.9 * (1 + math.cos(math.pi / 6)) / 2), strict=True
    ):
        optimizer.param_groups[0]["lr"] = warmed * CONFIG.learning_rate
        optimizer.zero_grad()
        outcome.losses.append(loss_and_gradients(losses, samples))
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        torch._foreach_mul_(gradients, min(1.0, CONFIG.clip_norm / norm))
        outcome.norms.append(norm)
        optimizer.step()
    outcome.tensors = model.adapters()
    return outcome


@every_shape
@pytest.mark.parametrize(
    "way",
    [
        Way(stages=2, schedule="adaptive"),
        Way(stages=2, shards=2, schedule="zb_h1", layouts="packed"),
        Way(stages=2, shards=2, spread=True, mode="full"),
        Way(stages=2, replicas=2, schedule="weights last", mode="selective", layouts="mixed"),
        Way(replicas=2, shards=2, zero_stage=1),
        Way(
            2, 2, 2, spread=True, schedule="adaptive", mode="mixed", zero_stage=1, layouts="packed"
        ),
    ],
)
def test_three_steps_are_those_of_peft(name: str, way: Way) -> None:
    modes = MODES[way.mode]
    found = three_steps(
        way.cluster, way.schedule, BATCHES, modes, shape=SHAPES[name], layouts=way.of_layouts
    )
    found.tensors = {k: w for k, w in found.tensors.items() if "lora" in k}
    assert_equal(found, expected_steps(name))


RECOMPUTED = (Recompute.NONE, Recompute.FULL)
DECODER_LORA = Lora(rank=3, alpha=5.0)


def decoder_of(name: str, folder: Path) -> TransformersShape:
    with in_float64(DECODERS[name].module):
        saved_decoder(name, folder)
    return origin_of(folder)[1]


@pytest.mark.parametrize("name", DECODERS)
def test_gradients_of_adapters_are_those_of_peft(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft: pip install '.[reference]'")
    shape = decoder_of(name, tmp_path).model_copy(update={"lora": DECODER_LORA})
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
        r=DECODER_LORA.rank, lora_alpha=DECODER_LORA.alpha, target_modules=modules, lora_dropout=0.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of what peft calls in transformers
        model = peft.get_peft_model(base, config).double()
    theirs = {ours_of(key): p for key, p in model.named_parameters() if p.requires_grad}
    assert theirs.keys() == {key for key in weights if "lora" in key}
    for key, parameter in theirs.items():
        parameter.data.copy_(weights[key])

    losses = partial(their_losses, DECODERS[name].module, model, start=START_ID)
    loss = loss_and_gradients(losses, BATCHES[0])
    return Outcome([loss], [], {key: p.grad for key, p in theirs.items()})


def ours_of(name: str) -> str:
    path, _, rest = name.removeprefix("base_model.model.").partition(".lora_")
    return f"{path}.adapters.{path.rpartition('.')[2]}.lora_{rest[0].lower()}"
