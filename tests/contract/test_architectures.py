"""Parts of every `ModelShape`, against the torch modules of the family."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from tests.examples.training_case import (
    GATED_T5_SHAPE,
    LLAMA_SHAPE,
    PLAIN_LLAMA_SHAPE,
    SHAPE,
    T5_SHAPE,
    TIED_SHAPE,
    UNEVEN_SHAPE,
    UNEVEN_T5_SHAPE,
    name_of,
)
from tests.jobs.local_shards import OneOf, of_stream
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from dynapipe_hpc.architecture.decoder import DecoderShape, LlamaShape
from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER, Amount, Part, Side
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE, ENCODER, ENCODER_SIDE
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.config_keys import key_tables
from dynapipe_hpc.models import decoder
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.decoder import Embedding
from dynapipe_hpc.models.deferred_weights import DeferredWeights, deferring
from dynapipe_hpc.models.family import add_adapters, family_of
from dynapipe_hpc.models.head import Head
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.models.sharding.sharded_linear import (
    ResidualStream,
    TokenEmbedding,
    residual_stream,
)
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.t5 import (
    AttentionMasks,
    BothMasks,
    DecoderLayer,
    EncoderLayer,
    RelativeBias,
    norm_of,
)
from dynapipe_hpc.training.tied_copies import tied_weights

ROWS, INPUTS, TARGETS = 3, 24, 16
NUMBER = 4  # bytes, in float32
FEW_NUMBERS = 12
WIDE_VOCABULARY = 301
LORA_RANK = 3
WIDE = {"hidden_size": 48, "vocab_size": WIDE_VOCABULARY}


@dataclass(frozen=True)
class Rows:
    """Tensors that a part may read; the streams need gradients, masks do not."""

    input_stream: ResidualStream
    target_stream: ResidualStream
    inputs: Tensor
    targets: Tensor
    encoded: Tensor
    tokens: Tensor
    target_tokens: Tensor
    padding: Tensor
    mask: Tensor
    target_mask: Tensor
    batch: Batch

    @classmethod
    def of(cls, shape: ModelShape, shards: Shards) -> "Rows":
        def whole(tokens: int) -> Tensor:
            return torch.randn(ROWS, tokens, shape.hidden_size)

        def hidden(stream: ResidualStream, tokens: int) -> Tensor:
            return of_stream(stream, whole(tokens)).clone().requires_grad_()

        def mask(tokens: int) -> Tensor:
            return torch.zeros(1, shape.n_heads // shards.n_shards, tokens, tokens)

        def ids(tokens: int) -> Tensor:
            return torch.randint(0, 10, (ROWS, tokens))

        inputs, targets = (residual_stream(shards, ROWS, n) for n in (INPUTS, TARGETS))
        return cls(
            inputs,
            targets,
            hidden(inputs, INPUTS),
            hidden(targets, TARGETS),
            whole(INPUTS).requires_grad_(),
            ids(INPUTS),
            ids(TARGETS),
            torch.zeros(ROWS, 1, 1, INPUTS),
            mask(INPUTS),
            mask(TARGETS),
            batch_of(shape),
        )


def batch_of(shape: ModelShape) -> Batch:
    if not isinstance(shape, LlamaShape):
        return Batch((ROWS, INPUTS))
    angles = Angles.from_positions(shape, torch.arange(INPUTS), torch.float32)
    return Batch((ROWS, INPUTS), angles=angles)


def run_decoder_layer(layer: nn.Module, rows: Rows, mode: Recompute) -> Tensor:
    seen = BothMasks(AttentionMasks([rows.target_mask], None), AttentionMasks([None], None))
    output: Tensor = layer(rows.targets, rows.target_stream, seen, mode, rows.encoded)
    return output


class HeadAlone(nn.Module):
    """Final norms and loss, with a copy of the embedding's vectors if the head is tied to them."""

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        norms: list[nn.Module] = [norm_of(shape), norm_of(shape)]  # of both sides of a T5
        if isinstance(shape, DecoderShape):
            norms = [decoder.norm_of(shape)]
        self.norms = nn.ModuleList(norms)
        is_divided = shape.family == "t5" and shape.tied_head
        self.head = Head(shape, shards, norms[0], divisor=2.0 if is_divided else 1.0)
        size = shape.vocab_size, shape.hidden_size
        self.embedding = TokenEmbedding(*size, shards) if shape.tied_head else None

    def forward(self, hidden: Tensor, stream: ResidualStream, labels: Tensor) -> Tensor:
        losses: Tensor = self.head(hidden, stream, labels, self.embedding and self.embedding.weight)
        return losses.sum()


Run = Callable[[Any, Rows, Recompute], Tensor]


@dataclass(frozen=True)
class Module:
    make: Callable[[Any, Shards], nn.Module]
    run: Run
    norms: tuple[int, int] = (0, 0)
    attentions: int = 0


def run_head(module: nn.Module, hidden: Tensor, stream: ResidualStream, labels: Tensor) -> Tensor:
    loss: Tensor = module(hidden.clone(), stream, labels)  # what enters counts with the head
    return loss


def run_layer(layer: nn.Module, rows: Rows, mode: Recompute) -> Tensor:
    output: Tensor = layer(rows.inputs, rows.input_stream, rows.batch, mode)
    return output


DECODER_HEAD = Module(
    HeadAlone, lambda m, r, _: run_head(m, r.inputs, r.input_stream, r.tokens), (0, 1)
)
MODULES: dict[str, dict[str, Module]] = {
    "gpt": {
        LAYER: Module(decoder.layer_of, run_layer, (1, 1), 1),
        EMBEDDING: Module(
            lambda shape, shards: Embedding(shape, shards, shape.max_tokens),
            lambda m, r, _: m(r.tokens, r.input_stream),
        ),
        HEAD: DECODER_HEAD,
    },
    "llama": {
        LAYER: Module(decoder.layer_of, run_layer, (1, 1), 1),
        EMBEDDING: Module(Embedding, lambda m, r, _: m(r.tokens, r.input_stream)),
        HEAD: DECODER_HEAD,
    },
    "t5": {
        ENCODER: Module(
            EncoderLayer,
            lambda m, r, mode: m(r.inputs, r.input_stream, AttentionMasks([r.mask], None), mode),
            (1, 1),
            1,
        ),
        DECODER: Module(DecoderLayer, run_decoder_layer, (2, 1), 2),
        ENCODER_SIDE: Module(
            lambda shape, shards: RelativeBias(shape, shards, causal=False),
            lambda m, r, _: m(INPUTS, r.padding),
        ),
        DECODER_SIDE: Module(
            lambda shape, shards: RelativeBias(shape, shards, causal=True),
            lambda m, _rows, _: m(TARGETS),
        ),
        EMBEDDING: Module(
            lambda shape, shards: TokenEmbedding(shape.vocab_size, shape.hidden_size, shards),
            lambda m, r, _: m(r.tokens, r.input_stream),
        ),
        HEAD: Module(
            HeadAlone,
            lambda m, r, _: run_head(m, r.targets, r.target_stream, r.target_tokens),
            (0, 1),
        ),
    },
}
SHAPES = (
    *(SHAPE, TIED_SHAPE, UNEVEN_SHAPE),
    *(LLAMA_SHAPE, PLAIN_LLAMA_SHAPE),
    *(T5_SHAPE, UNEVEN_T5_SHAPE, GATED_T5_SHAPE),
    *(
        shape.model_copy(update={"lora": Lora(rank=LORA_RANK, targets=targets)})
        for shape, targets in (
            (TIED_SHAPE, None),
            (SHAPE, ("attention_output", "up")),
            (LLAMA_SHAPE, None),
            (PLAIN_LLAMA_SHAPE, ("value", "gate")),
            (T5_SHAPE, None),
            (T5_SHAPE, ("query", "value", "down")),
            (GATED_T5_SHAPE, ("key", "gate")),
        )
    ),
)


@dataclass(frozen=True)
class Case:
    """A part of a model, as a number of shards cut it."""

    shape: ModelShape
    kind: str
    n_shards: int
    sequence_parallel: bool = False

    def __str__(self) -> str:
        shape, spread = self.shape, "-spread" if self.sequence_parallel else ""
        sizes = f"{name_of(shape)}-{shape.hidden_size}-{shape.n_heads}"
        return f"{sizes}-{self.kind}-{self.n_shards}{spread}"

    @property
    def n_stream_shards(self) -> int:
        return self.n_shards if self.sequence_parallel else 1

    @property
    def part(self) -> Part:
        return self.shape.parts(self.n_shards, self.n_stream_shards)[self.kind]

    @property
    def module(self) -> Module:
        return MODULES[self.shape.family][self.kind]

    @property
    def n_heads(self) -> int:
        return self.shape.n_heads // self.n_shards

    def build(self) -> tuple[nn.Module, Rows]:
        torch.manual_seed(0)
        shards = OneOf(self.n_shards, sequence_parallel=self.sequence_parallel)
        module = self.module.make(self.shape, shards)
        if self.shape.lora:
            add_adapters(module, self.shape.linear_layers, self.shape.lora)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.1)
        return module, Rows.of(self.shape, shards)

    def run(self, module: nn.Module, rows: Rows, mode: Recompute) -> Tensor:
        return self.module.run(module, rows, mode)


@cache
def made(case: Case) -> tuple[nn.Module, Rows]:
    """The module and what it reads; the same for every test."""
    return case.build()


CASES = [
    Case(shape, kind, n_shards, sequence_parallel)
    for shape in SHAPES
    for kind in MODULES[shape.family]
    for n_shards, sequence_parallel in ((1, False), (2, False), (3, False), (2, True), (3, True))
    if shape.n_heads % n_shards == shape.ffn_size % n_shards == 0
]
ENDS = [
    replace(case, shape=case.shape.model_copy(update=WIDE))
    for case in CASES
    if case.kind in (EMBEDDING, HEAD)
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_layer = pytest.mark.parametrize("case", [c for c in CASES if c.module.attentions], ids=str)
every_split_layer = pytest.mark.parametrize(
    "case", [c for c in CASES if c.module.attentions and not c.sequence_parallel], ids=str
)
every_side = pytest.mark.parametrize(
    "case", [c for c in CASES if c.kind in (ENCODER_SIDE, DECODER_SIDE)], ids=str
)
every_end = pytest.mark.parametrize("case", ENDS, ids=str)
every_mode = pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)


def counted(amount: Amount, side: Side) -> int:
    """Value of an amount for `ROWS` of `INPUTS` and `TARGETS`."""
    own, source, pairs, square = {
        Side.INPUTS: (INPUTS, 0, INPUTS * INPUTS, INPUTS * INPUTS),
        Side.TARGETS: (TARGETS, INPUTS, TARGETS * (TARGETS + INPUTS), TARGETS * TARGETS),
        Side.LONGER: (INPUTS, 0, 0, 0),
    }[side]
    of_row = own * amount.per_own + source * amount.per_source + pairs * amount.per_pair
    return ROWS * (of_row + square * amount.per_own_pair) + square * amount.per_square


def own_tokens(case: Case) -> int:
    return counted(Amount(1), case.part.side)


def test_every_family_and_kind_of_part_is_tested() -> None:
    families = {table.chosen for table in key_tables() if table.path == "model"}
    # Layers of a library have no closed forms; tests/architecture/test_transformers.py has theirs.
    estimated = families - {"transformers"}
    assert MODULES.keys() == estimated == {shape.family for shape in SHAPES}
    for shape in SHAPES:
        assert MODULES[shape.family].keys() == shape.parts().keys()


@every_case
def test_parameters_are_those_of_the_module(case: Case) -> None:
    module, _ = made(case)
    frozen = [p.numel() for p in module.parameters() if not p.requires_grad]
    trained = [p.numel() for p in module.parameters() if p.requires_grad]
    assert sum(trained + frozen) == case.part.parameters
    assert sum(frozen) == case.part.frozen
    assert max(trained, default=0) == case.part.largest_weight


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
@pytest.mark.parametrize("n_stages", [1, 2, 3, 4])
def test_tied_weights_are_those_that_several_stages_hold(shape: ModelShape, n_stages: int) -> None:
    holders: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    placement = Placement.equal_shares(shape.n_all_layers, n_stages)
    for stage, layers in enumerate(placement.layers):
        last = stage == n_stages - 1
        module = family_of(shape)(shape, layers, first=stage == 0, last=last)
        for name, weight in module.named_parameters():
            if not weight.requires_grad:
                continue
            holders.setdefault(name, []).append(stage)
            sizes[name] = weight.numel()
    copies = {name: tuple(stages) for name, stages in holders.items() if len(stages) > 1}
    tied = tied_weights(shape, placement, n_shards=1)
    assert {name: weight.stages for name, weight in tied.items()} == copies
    assert {name: weight.n_numbers for name, weight in tied.items()} == {
        name: sizes[name] for name in copies
    }
    assert {name for name in tied if tied[name].in_pairs} == {
        name for name in tied if "bias" not in name
    }


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of products by torch's formulas."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n_operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if formula := flop_registry.get(func.overloadpacket):
            self.n_operations += formula(*args, **kwargs, out_val=result)
        return result


@cache
def operations(case: Case, mode: Recompute) -> tuple[int, int]:
    """Operations of a forward and a backward pass."""
    module, rows = made(case)
    with sdpa_kernel(SDPBackend.MATH):
        with Products() as forward:
            output = case.run(module, rows, mode)
        with Products() as backward:
            if output.requires_grad:
                torch.autograd.backward(output.sum())
    return forward.n_operations, backward.n_operations


@every_case
def test_work_is_what_torch_counts_in_products(case: Case) -> None:
    # An embedding has no products, only additions.
    forward, backward = operations(case, Recompute.NONE)
    work, side = case.part.work, case.part.side
    if case.kind == EMBEDDING:
        assert forward == backward == 0
        assert work.forward == Amount(case.shape.hidden_size)
        assert work.backward == work.forward.times(0 if case.shape.lora else 2)
    else:
        assert forward == counted(work.forward, side)
        repeated = counted(case.part.recomputed_work(Recompute.NONE), side)
        assert backward == counted(work.backward, side) + repeated


@every_layer
@every_mode
def test_recomputed_work_is_all_but_the_last_map_which_nothing_needs(
    case: Case, mode: Recompute
) -> None:
    _, backward = operations(case, mode)
    part, shape = case.part, case.shape
    last_inputs = {
        Recompute.NONE: 0,
        Recompute.SELECTIVE: shape.attention_size // case.n_shards,
        Recompute.FULL: shape.ffn_size // case.n_shards,
    }[mode]
    last_map = 2 * last_inputs * shape.hidden_size * own_tokens(case)
    again = backward - counted(part.work.backward, part.side)
    assert again == counted(part.recomputed_work(mode), part.side) - last_map


class SecondHalf(NamedTuple):
    """Work that the first half of a split backward pass leaves to the second."""

    operations: int
    waiting_bytes: int
    inner_bytes: int


@cache
def second_half(case: Case, mode: Recompute) -> SecondHalf:
    module, rows = made(case)
    waiting = DeferredWeights()
    with deferring(waiting):
        output = case.run(module, rows, mode)
    torch.autograd.backward(output, torch.ones_like(output))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in waiting.kept}
    storages.pop(rows.encoded.untyped_storage().data_ptr(), None)
    n_bytes = sum(storage.nbytes() for storage in storages.values())
    inner = sum(each.nbytes for each in waiting.kept[1::2] if each.shape[-1] == LORA_RANK)
    with Products() as products:
        waiting.accumulate()
    return SecondHalf(products.n_operations, n_bytes, inner)


@every_split_layer
@every_mode
def test_deferred_work_is_what_the_second_half_of_a_split_pass_computes(
    case: Case, mode: Recompute
) -> None:
    deferred = case.part.deferred_work(mode)
    assert second_half(case, mode).operations == counted(deferred, case.part.side)


@every_split_layer
@every_mode
def test_what_waits_for_the_second_half_is_no_more_than_what_the_forward_pass_kept(
    case: Case, mode: Recompute
) -> None:
    # Of the gradients that enter and leave, one counts with the layer, as of activations.
    # Adapters leave the gradients of their inner products, too, where a layer without them may
    # have no room.
    left = second_half(case, mode)
    left_over = kept_bytes(case, mode) - left.waiting_bytes
    if mode is Recompute.FULL:
        assert left.waiting_bytes == 0
    elif mode is Recompute.NONE and case.shape.family != "t5" and not case.shape.lora:
        assert left_over == normed_heads_bytes(case)
    else:
        assert left_over >= -left.inner_bytes


def left_out_bytes(case: Case, mode: Recompute) -> int:
    """Bytes that norms and softmaxes keep: a few numbers per token, and on a CPU some more."""
    normalised = 0 if case.shape.lora else case.shape.hidden_size
    of_norm = 2 if case.shape.family == "gpt" else 1 + normalised
    n_attention, n_other = case.module.norms
    n_norms, n_attentions = {
        Recompute.NONE: (n_attention + n_other, case.module.attentions),
        Recompute.SELECTIVE: (n_other, 0),
        Recompute.FULL: (0, 0),
    }[mode]
    of_norms = n_norms * of_norm * own_tokens(case) // case.n_stream_shards
    normalised_heads = 0 if case.shape.lora else normed_heads_bytes(case)
    of_heads = normalised_heads + NUMBER * n_heads_normed(case) if n_attentions else 0
    return NUMBER * (of_norms + n_attentions * case.n_heads * own_tokens(case)) + of_heads


def n_heads_normed(case: Case) -> int:
    """Heads of queries and keys of all tokens that have a norm of their own."""
    shape = case.shape
    if not isinstance(shape, LlamaShape) or not shape.qk_norm:
        return 0
    return own_tokens(case) * (case.n_heads + (shape.n_kv_heads or 0) // case.n_shards)


def normed_heads_bytes(case: Case) -> int:
    return NUMBER * n_heads_normed(case) * (case.shape.head_size or 0)


def kept_bytes(case: Case, mode: Recompute) -> int:
    return counted(case.part.kept_bytes(mode, NUMBER), case.part.side)


@every_layer
@every_mode
def test_a_layer_keeps_what_is_said(case: Case, mode: Recompute) -> None:
    # Of what enters and what leaves a layer, one counts with it: here, what leaves.
    module, rows = made(case)
    with LiveMemory() as live:
        _output = case.run(module, rows, mode)
    assert live.live_bytes == kept_bytes(case, mode) + left_out_bytes(case, mode)


@every_side
def test_what_a_side_adds_to_scores_is_kept_as_said_and_so_is_its_gradient(case: Case) -> None:
    # Left out are the bucket of every distance, and whether it is ahead.
    module, rows = made(case)
    with LiveMemory() as live:
        added = case.run(module, rows, Recompute.NONE)
    kept = counted(case.part.kept_bytes(Recompute.NONE, NUMBER), case.part.side)
    assert added.nbytes == kept
    gradient = NUMBER * counted(case.part.gradient_sum, case.part.side)
    assert gradient == (0 if case.shape.lora else kept)
    n_distances = 2 * {Side.INPUTS: INPUTS, Side.TARGETS: TARGETS}[case.part.side] - 1
    assert 0 <= live.live_bytes - kept <= FEW_NUMBERS * NUMBER * n_distances


@every_end
def test_embedding_and_head_keep_what_is_said_but_for_few_numbers_per_token(case: Case) -> None:
    # Left out are token ids and weights, sums over the vocabulary, and what the norm keeps. A
    # vector that is looked up counts with the layer that it enters.
    module, rows = made(case)
    with LiveMemory() as live:
        output = case.run(module, rows, Recompute.NONE)
    entering = output.nbytes if case.kind == EMBEDDING else 0
    left_out = live.live_bytes - entering - kept_bytes(case, Recompute.NONE)
    normed = left_out_bytes(case, Recompute.NONE)
    n_tokens = ROWS * max(INPUTS, TARGETS)
    assert 0 <= left_out - normed <= FEW_NUMBERS * NUMBER * n_tokens
    assert min(case.shape.hidden_size, WIDE_VOCABULARY // case.n_shards) > FEW_NUMBERS
