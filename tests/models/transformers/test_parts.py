"""Parts of decoders of `transformers`, against runs of their layers and against own families."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.examples.any_decoders import DECODERS, HEAD_SIZE, WIDE, WIDE_WINDOW, WIDTH, wide_decoder
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER, NOTHING, Amount, Part
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.batch import Batch, Labels
from dynapipe_hpc.models.deferred_weights import DeferredWeights, deferring
from dynapipe_hpc.models.transformers.parts import decoder_parts
from dynapipe_hpc.models.transformers.stage import TransformersStage
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.planner.cost.stage_parts import Tokens
from dynapipe_hpc.training.huggingface.origin import find_origin

N_LAYERS = 4


def kept_bytes(stage: TransformersStage, hidden: Tensor, batch: Batch) -> int:
    """Bytes of what backward keeps, but for weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in stage.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (storage := tensor.untyped_storage()).data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # which lives on, so that no other takes its place
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        stage.run(hidden, batch, Recompute.NONE)
    return sum(storage.nbytes() for storage in kept.values())


def estimated_bytes(part: Part, n_rows: int, n_tokens: int) -> float:
    shapes = Shapes.padded(*(np.array([n]) for n in (n_rows, n_tokens, 0)))
    tokens = Tokens.from_shapes(part.side, shapes, part.window)
    return float(tokens.times(part.kept_bytes(Recompute.NONE, 4))[0])


def drawn(stage: TransformersStage, *size: int) -> Tensor:
    """A random activation, after the weights, too, have been drawn."""
    generator = torch.Generator().manual_seed(1)
    for weight in stage.parameters():
        torch.nn.init.normal_(weight, std=0.05, generator=generator)
    return torch.randn(*size, WIDTH, generator=generator).requires_grad_()


@pytest.mark.parametrize(
    ("size", "lora"),
    [((2, 40), None), ((1, 200), None), ((1, 200), Lora(rank=2))],
    ids=["within windows", "beyond windows", "adapters"],
)
@pytest.mark.parametrize("name", DECODERS)
def test_layers_keep_what_is_estimated(
    name: str, size: tuple[int, int], lora: Lora | None, tmp_path: Path
) -> None:
    shape = wide_decoder(name, tmp_path).model_copy(update={"lora": lora})
    stage = TransformersStage(shape, range(N_LAYERS), first=False, last=False)
    batch = Batch(size)
    found = kept_bytes(stage, drawn(stage, *size), batch)
    layer = decoder_parts(shape, "float32", is_packed=False)[LAYER]
    assert N_LAYERS * estimated_bytes(layer, *size) == pytest.approx(found, rel=0.03)


@pytest.mark.parametrize("name", ["llama", "gemma2", "starcoder2"])
def test_heads_keep_what_is_estimated(name: str, tmp_path: Path) -> None:
    shape = wide_decoder(name, tmp_path)
    stage = TransformersStage(shape, range(4, 4), first=False, last=True)
    ids = torch.zeros(2, 64, dtype=torch.int64)
    batch = Batch((2, 64), labels=Labels(ids, ids, ids))
    found = kept_bytes(stage, drawn(stage, 2, 64), batch)
    head = decoder_parts(shape, "float32", is_packed=False)[HEAD]
    assert estimated_bytes(head, 2, 64) == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["weights", "adapters"])
@pytest.mark.parametrize("name", DECODERS)
def test_split_passes_leave_the_work_that_is_estimated_and_no_more_than_was_kept(
    name: str, lora: Lora | None, tmp_path: Path
) -> None:
    shape, size = wide_decoder(name, tmp_path).model_copy(update={"lora": lora}), (2, 40)
    stage = TransformersStage(shape, range(N_LAYERS), first=False, last=False)
    hidden, batch = drawn(stage, *size), Batch(size)
    queue = DeferredWeights()
    with deferring(queue):
        output = stage.run(hidden, batch, Recompute.NONE)
    torch.autograd.backward(output, torch.randn_like(output))
    factors = list(zip(queue.kept[::2], queue.kept[1::2], strict=True))
    operations = sum(2 * values.numel() * gradient.shape[-1] for values, gradient in factors)
    layer = decoder_parts(shape, "float32", is_packed=False)[LAYER]
    deferred = layer.deferred_work(Recompute.NONE)
    assert operations == N_LAYERS * math.prod(size) * deferred.per_own
    assert deferred == Amount(deferred.per_own)
    assert layer.deferred_work(Recompute.FULL) == NOTHING
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in queue.kept}
    waiting = sum(storage.nbytes() for storage in storages.values())
    assert waiting <= kept_bytes(stage, hidden, batch)


def test_a_llama_computes_and_holds_what_its_own_family_says(tmp_path: Path) -> None:
    shape = wide_decoder("llama", tmp_path)
    own = find_origin(tmp_path, "llama").shape.parts()
    for dtype in ("float32", "bfloat16", "float64"):
        parts = decoder_parts(shape, dtype, is_packed=True)
        assert parts.keys() == own.keys()
        for kind, part in parts.items():
            assert part.work == own[kind].work
            assert part.deferred_work(Recompute.NONE) == own[kind].deferred_work(Recompute.NONE)
            assert part.parameters == own[kind].parameters
        # Weights that its own family joins are apart here.
        assert parts[EMBEDDING].largest_weight == own[EMBEDDING].largest_weight
        assert parts[LAYER].largest_weight == WIDTH * WIDE["intermediate_size"]


def test_experts_compute_for_the_tokens_that_choose_them(tmp_path: Path) -> None:
    layer = decoder_parts(wide_decoder("qwen3_moe", tmp_path), "float32", is_packed=True)[LAYER]
    projections = 2 * WIDTH * HEAD_SIZE * (8 + 4 + 4) + 2 * 8 * HEAD_SIZE * WIDTH
    n_experts, n_chosen = 5, 2
    routed = 2 * WIDTH * n_experts + n_chosen * 3 * 2 * WIDTH * 64
    assert layer.work.linear.per_own == projections + routed
    assert layer.parameters > n_experts * 3 * WIDTH * 64  # all are held, and read
    assert layer.largest_weight == n_experts * 2 * WIDTH * 64


def test_frozen_weights_spare_their_gradients(tmp_path: Path) -> None:
    shape = wide_decoder("llama", tmp_path)
    adapted = shape.model_copy(update={"lora": Lora(rank=4, targets=("q_proj", "down_proj"))})
    own = find_origin(tmp_path, "llama").shape
    like = own.model_copy(update={"lora": Lora(rank=4, targets=("query", "down"))}).parts()
    for kind, part in decoder_parts(adapted, "float32", is_packed=True).items():
        assert part.work == like[kind].work
        assert (part.parameters, part.frozen) == (like[kind].parameters, like[kind].frozen)
        assert part.largest_weight == like[kind].largest_weight


def test_windows_limit_what_attention_computes_where_kernels_have_them(tmp_path: Path) -> None:
    shape = wide_decoder("gemma3", tmp_path)  # three of four layers have windows
    per_pair = 4 * 8 * HEAD_SIZE
    packed, padded = (
        decoder_parts(shape, "bfloat16", is_packed=is_packed)[LAYER] for is_packed in (True, False)
    )
    assert packed.window == padded.window == WIDE_WINDOW
    assert packed.work.attention.per_pair == padded.work.attention.per_pair == per_pair
    assert packed.work.attention.per_far_pair == -0.75 * per_pair
    assert padded.work.attention.per_far_pair == 0
    masks = [part.blocks[0].kept.per_masked_square for part in (packed, padded)]
    assert masks == [0, 1]  # three quarters of a number, rounded up
    few = [*["full_attention"] * 3, "sliding_attention"]
    shape = wide_decoder("gemma3", tmp_path / "few", layer_types=few)
    layer = decoder_parts(shape, "float32", is_packed=False)[LAYER]
    assert layer.blocks[0].kept.per_masked_square == 1
    full = wide_decoder("llama", tmp_path / "full")
    assert decoder_parts(full, "bfloat16", is_packed=True)[LAYER].window == math.inf


def test_repeated_keys_and_values_of_windows_on_gpus_are_kept(tmp_path: Path) -> None:
    """Padded rows have a mask; the kernel of packed rows knows windows and groups of heads."""
    shape = wide_decoder("starcoder2", tmp_path)
    padded, packed = (
        decoder_parts(shape, "bfloat16", is_packed=is_packed)[LAYER].blocks[0].kept
        for is_packed in (False, True)
    )
    n_groups = WIDE["num_attention_heads"] - WIDE["num_key_value_heads"]
    assert padded.per_own - packed.per_own == pytest.approx(2 * n_groups * HEAD_SIZE)
