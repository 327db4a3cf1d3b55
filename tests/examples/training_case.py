"""A small model, random batches, and what training it unsplit gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, cycle, pairwise
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from tests.examples.equal_shares import equal_shares
from torch import Tensor

from dynapipe_hpc.architecture.decoder import GptShape, LlamaShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.rope_scaling import Llama3Scaling
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import Layout, MicroBatch, PackedRow, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import SampleTokens
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.sharding.shards import WHOLE, Split, splits_of
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.training.collectives import Collectives, SingleRankCollectives
from dynapipe_hpc.training.config import LossWeighting, TrainingConfig
from dynapipe_hpc.training.module_stage import ModuleStage
from dynapipe_hpc.training.objective import PreferenceLoss, weighted_tokens
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.tied_copies import tied_weights
from dynapipe_hpc.training.token_loader import Collate, TokenLoader

CPU = torch.device("cpu")
MAX_TOKENS = 24
START_ID = 30
SHAPE = GptShape(
    n_layers=4, hidden_size=16, n_heads=4, ffn_size=32, vocab_size=32, max_tokens=MAX_TOKENS
)
T5_SHAPE = T5Shape(
    n_layers=3,
    hidden_size=12,
    n_heads=4,
    head_size=5,
    ffn_size=24,
    vocab_size=32,
    max_tokens=MAX_TOKENS,
)
TIED_SHAPE = SHAPE.model_copy(update={"tied_head": True, "norm_epsilon": 1e-3})
# As T5 1.1, and with fewer layers in the decoder, as ByT5.
GATED_T5_SHAPE = T5_SHAPE.model_copy(
    update={"n_decoder_layers": 2, "gated": True, "tied_head": False, "norm_epsilon": 1e-3}
    | {"n_buckets": 8, "max_distance": 12}
)
# What Llama 3, Qwen2 and Qwen3 have, all in one.
LLAMA_SHAPE = LlamaShape(
    n_layers=4,
    hidden_size=12,
    n_heads=8,
    n_kv_heads=4,
    head_size=4,
    ffn_size=32,
    vocab_size=31,
    max_tokens=MAX_TOKENS,
    tied_head=True,
    rope_theta=100.0,
    rope_scaling=Llama3Scaling(
        kind="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=2.0, original_max_tokens=16
    ),
    qkv_bias=True,
    output_bias=True,
    qk_norm=True,
)
PLAIN_LLAMA_SHAPE = LLAMA_SHAPE.model_copy(
    update={"tied_head": False, "rope_scaling": None, "qkv_bias": False, "output_bias": False}
    | {"qk_norm": False, "n_heads": 6, "n_kv_heads": 6, "ffn_size": 24}
)
# Neither two nor three shards divide the vocabulary.
UNEVEN_SHAPE = SHAPE.model_copy(
    update={"hidden_size": 12, "n_heads": 6, "ffn_size": 24, "vocab_size": 31}
)
UNEVEN_T5_SHAPE = T5_SHAPE.model_copy(update={"n_heads": 6, "vocab_size": 31})


def name_of(shape: ModelShape) -> str:
    gated = isinstance(shape, T5Shape) and shape.gated
    tied = shape.tied_head and not isinstance(shape, T5Shape)
    options = {"tied": tied, "gated": gated, "lora": shape.lora}
    return "-".join([shape.family, *(name for name, is_set in options.items() if is_set)])


CONFIG = TrainingConfig(
    iterations=8, dtype="float64", learning_rate=1e-2, warmup_iterations=2, clip_norm=0.5
)


class RandomTokens:
    """Every sample's tokens come from its number."""

    def __call__(self, sample: Sample) -> SampleTokens:
        counts = (sample.input_tokens, sample.target_tokens, sample.rejected_tokens)
        inputs, targets, rejected = (
            np.random.default_rng((sample.sample_id, part)).integers(0, 30, n)
            for part, n in enumerate(counts)
        )
        return SampleTokens(inputs, targets, rejected, START_ID)


def random_samples(seed: int, n: int = 15) -> list[Sample]:
    """Samples of 1 to MAX_TOKENS tokens, both extremes among them."""
    stream = np.random.default_rng(seed)
    lengths = [1, MAX_TOKENS, *stream.integers(1, MAX_TOKENS + 1, n - 2).tolist()]
    targets = [int(stream.integers(1, length + 1)) for length in lengths]
    return [
        Sample(1000 * seed + i, length - target, target, task_id=i % 3)
        for i, (length, target) in enumerate(zip(lengths, targets, strict=True))
    ]


def padded(samples: Sequence[Sample], shape: ModelShape = SHAPE) -> PaddedRows:
    ids = tuple(s.sample_id for s in samples)
    if not shape.has_target_rows:
        return PaddedRows(ids, max(s.tokens for s in samples))
    inputs, targets = ([s.input_tokens for s in samples], [s.target_tokens for s in samples])
    return PaddedRows(ids, max(1, *inputs), target_tokens=max(targets) + 2)


def packed(samples: Sequence[Sample], fill: int = 0) -> PackedRow:
    """All samples end to end in one row, and behind them `fill` positions without any."""
    ids = tuple(s.sample_id for s in samples)
    offsets = tuple(accumulate((s.tokens for s in samples), initial=0))
    return PackedRow(ids, offsets[-1] + fill, offsets=offsets)


def packed_pairs(samples: Sequence[Sample], fill: int = 0, target_fill: int = 0) -> PackedRow:
    """The same for a T5: inputs in one row, targets in another; every input has a position."""
    row = packed_microbatch(samples, Recompute.NONE, is_encoder_decoder=True)
    row_tokens, target_tokens = row.offsets[-1] + fill, row.target_offsets[-1] + target_fill
    return replace(row, row_tokens=row_tokens, target_tokens=target_tokens)


def laid_out(samples: Sequence[Sample], layout: Layout, shape: ModelShape) -> MicroBatch:
    """One micro-batch; packed rows are filled up to a multiple of 8."""
    if layout is Layout.PADDED:
        return padded(samples, shape)
    return packed_microbatch(samples, Recompute.NONE, shape.has_target_rows)


LAYOUTS = {"packed": (Layout.PACKED,), "mixed": (Layout.PACKED, Layout.PADDED)}
each_layout = pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS.keys())


def random_split(
    samples: Sequence[Sample],
    n_parts: int,
    seed: int,
    modes: Sequence[Recompute] = (Recompute.NONE,),
    shape: ModelShape = SHAPE,
    layouts: Sequence[Layout] = (Layout.PADDED,),
) -> list[MicroBatch]:
    """Cuts samples, ordered by length, at random into micro-batches."""
    ordered = sorted(samples, key=lambda s: -s.tokens)
    stream = np.random.default_rng(seed)
    cuts = np.sort(stream.choice(np.arange(1, len(samples)), n_parts - 1, replace=False))
    bounds = [0, *cuts.tolist(), len(samples)]
    parts = [
        laid_out(ordered[a:b], layout, shape)
        for (a, b), layout in zip(pairwise(bounds), cycle(layouts), strict=False)
    ]
    return [replace(m, recompute=mode) for m, mode in zip(parts, cycle(modes), strict=False)]


def over_replicas(microbatches: Sequence[MicroBatch], n_replicas: int) -> list[list[MicroBatch]]:
    return [list(microbatches[replica::n_replicas]) for replica in range(n_replicas)]


@dataclass
class Rank:
    """Parts with which one rank trains."""

    module: StageOfFamily
    tokens: TokenLoader
    optimizer: Optimizer
    stage: ModuleStage

    def gradients(self) -> dict[str, Tensor]:
        """Of what the rank owns: those of copies of tied weights have gone to their owner."""
        found = self.optimizer.parameters.gradient_of
        held = self.module.named_parameters()
        return {name: found[p].clone() for name, p in held if p in found}

    def splits(self) -> dict[str, Split]:
        found = splits_of(self.module)
        return {name: found.get(name, WHOLE) for name, _ in self.module.named_parameters()}

    def weights(self) -> dict[str, Tensor]:
        return {n: p.detach().clone() for n, p in self.module.named_parameters()}


Loading = Callable[[TokenLoader], Callable[[MicroBatch], Any]]


def begun(module: StageOfFamily) -> StageOfFamily:
    """A module as training begins; adapters as if it had begun, or A would have no gradients."""
    for name, weight in module.state_dict().items():
        if name.endswith("lora_b"):
            stream = torch.Generator().manual_seed(crc32(name.encode()))
            weight.normal_(std=0.3, generator=stream)
    return module


def make_rank(
    cluster: Cluster,
    stage: int,
    collectives: Collectives,
    weighting: LossWeighting = "token",
    loading: Loading = lambda loader: loader,
    dtype: torch.dtype = torch.float64,
    shape: ModelShape = SHAPE,
    device: torch.device = CPU,
    objective: PreferenceLoss | None = None,
) -> Rank:
    """A rank of the small model; `loading` may tamper with what is loaded."""
    placement = equal_shares(shape, cluster)
    make = partial(
        family_of(shape),
        shape,
        placement.layers[stage],
        first=stage == 0,
        last=stage == cluster.n_stages - 1,
        seed=7,
        dtype=dtype,
        device=device,
    )
    module = make(shards=collectives)
    splits, unsplit = splits_of(module), begun(make()).state_dict()
    parts = {name: splits.get(name, WHOLE).part_of(whole) for name, whole in unsplit.items()}
    module.load_state_dict(parts)
    collate: Collate = module.collate
    tokens = TokenLoader(RandomTokens(), START_ID, weighting, collate)
    tied = tied_weights(shape, placement, cluster.n_shards)
    shares_state = cluster.zero_stage == 1
    optimizer = Optimizer(module, CONFIG, collectives, shares_state=shares_state, tied=tied)
    own_stage = ModuleStage(module, loading(tokens), optimizer)
    if objective is not None:
        own_stage.train_preferences(objective)
    return Rank(module, tokens, optimizer, own_stage)


@dataclass
class Outcome:
    """Results of training: per iteration the loss and norm, at the end gradients or weights."""

    losses: list[float]
    norms: list[float]
    tensors: dict[str, Tensor]


def unsplit_gradients(
    samples: Sequence[Sample],
    batch: MicroBatch,
    weighting: LossWeighting = "token",
    shape: ModelShape = SHAPE,
) -> Outcome:
    """Loss and gradients by plain autograd, the whole batch in one go."""
    alone = Cluster(device_memory_bytes=1)
    rank = make_rank(alone, 0, SingleRankCollectives(), weighting, shape=shape)
    rank.tokens.start_iteration(samples)
    loss = run_stage(rank.module, None, rank.tokens(batch))
    gradients = torch.autograd.grad(loss, list(rank.module.parameters()))
    names = [name for name, _ in rank.module.named_parameters()]
    return Outcome([loss.item()], [], dict(zip(names, gradients, strict=True)))


def unsplit_training(batches: Sequence[Sequence[Sample]], shape: ModelShape = SHAPE) -> Outcome:
    """Weights after a step on each batch, by one process that holds the whole model."""
    alone = Cluster(device_memory_bytes=1)
    rank = make_rank(alone, 0, SingleRankCollectives(), shape=shape)
    outcome = Outcome([], [], {})
    for iteration, samples in enumerate(batches):
        rank.tokens.start_iteration(samples, iteration)
        rank.stage.load(0, padded(samples, shape))
        rank.stage.forward(0, None)
        rank.stage.backward(0, None)
        rank.stage.step_optimizer()
        report = rank.stage.finish_iteration()
        outcome.losses.append(report.loss)
        outcome.norms.append(report.gradient_norm)
    outcome.tensors = rank.weights()
    return outcome


def run_stage(
    stage: StageOfFamily, activation: Tensor | None, batch: Batch, mode: Recompute = Recompute.NONE
) -> Tensor:
    """The activation for the next stage; on the last stage, the weighted loss."""
    output = stage.run(activation, batch, mode)
    if not stage.is_last:
        return output
    assert batch.labels is not None
    return weighted_tokens(output, batch.labels)
