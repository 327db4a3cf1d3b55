"""Training in a pipeline gives what training without one gives, in float64 to rounding."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest
import torch
from tests.examples.pipeline_training import (
    MODES,
    assert_equal,
    clusters,
    each_of,
    gradients,
    id_of,
    spread,
    three_steps,
    train,
)
from tests.examples.planned_iteration import planned_iteration
from tests.examples.preference_training import DPO, plain_steps, preference_steps, random_pairs
from tests.examples.sliced_case import CUTS, sliced_steps
from tests.examples.training_case import (
    GATED_T5_SHAPE,
    LAYOUTS,
    LLAMA_SHAPE,
    PLAIN_LLAMA_SHAPE,
    SHAPE,
    T5_SHAPE,
    TIED_SHAPE,
    UNEVEN_SHAPE,
    UNEVEN_T5_SHAPE,
    Outcome,
    Rank,
    name_of,
    over_replicas,
    padded,
    random_samples,
    random_split,
    unsplit_gradients,
    unsplit_training,
)

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import DenseRows, Layout, MicroBatch, Recompute
from dynapipe_hpc.models import head
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.planner.schedule.config import RuleName
from dynapipe_hpc.training.config import LossWeighting, PreferenceLossConfig
from dynapipe_hpc.training.token_loader import TokenLoader

Sizes = tuple[int, int, int]
BATCHES = [random_samples(seed) for seed in (4, 5, 6)]
PADDED, PACKED, MIXED = (Layout.PADDED,), LAYOUTS["packed"], LAYOUTS["mixed"]
(WHOLE,) = clusters((2, 2, 1))
COMMON: list[Sizes] = [(1, 1, 1), (1, 2, 1), (2, 2, 1), (4, 1, 1), (4, 2, 1), (1, 1, 2)]
GPT_SIZES: list[Sizes] = [*COMMON, (2, 1, 1), (1, 1, 4), (2, 2, 2)]
T5_SIZES: list[Sizes] = [*COMMON, (2, 1, 1), (3, 1, 1), (3, 2, 1), (6, 1, 1), (3, 1, 2)]
UNEVEN_SIZES: list[Sizes] = [(1, 1, 2), (1, 1, 3), (2, 1, 3), (2, 2, 2)]


def dropping(shape: ModelShape) -> ModelShape:
    return shape.model_copy(update={"dropout": 0.2})


class Ways(NamedTuple):
    """A model, how it is trained, and by how many stages, replicas and shards."""

    shape: ModelShape
    schedule: str
    layouts: Sequence[Layout]
    sizes: Sequence[Sizes]
    zero_stage: int = 0
    may_spread: bool = True


def each_way(ways: dict[str, Ways]) -> pytest.MarkDecorator:
    """Every one, also with the residual stream shared out among shards."""
    cases = [
        pytest.param(
            way,
            cluster.model_copy(update={"zero_stage": way.zero_stage}),
            id=f"{name}, {id_of(cluster)}",
        )
        for name, way in ways.items()
        for cluster in clusters(*way.sizes) + spread(clusters(*way.sizes) if way.may_spread else [])
    ]
    return pytest.mark.parametrize(("way", "cluster"), cases)


@each_way(
    {
        "gpt": Ways(SHAPE, "adaptive", PADDED, GPT_SIZES),
        "tied": Ways(TIED_SHAPE, "adaptive", PADDED, [(2, 2, 1), (4, 1, 1), (1, 1, 2)]),
        "packed": Ways(SHAPE, "adaptive", PACKED, [(2, 2, 1), (4, 1, 1), (2, 1, 2)]),
        "mixed": Ways(SHAPE, "adaptive", MIXED, [(2, 2, 1), (4, 1, 1), (2, 1, 2)]),
        "packed, split": Ways(SHAPE, "zb_h1", PACKED, [(3, 2, 1)], 1),
        "mixed, split": Ways(SHAPE, "zb_h1", MIXED, [(3, 2, 1)], 1),
        "t5": Ways(T5_SHAPE, "adaptive", PADDED, T5_SIZES),
        "packed t5": Ways(
            T5_SHAPE, "adaptive", PACKED, [(2, 2, 1), (3, 1, 1), (4, 1, 1), (2, 1, 2)]
        ),
        "mixed t5": Ways(T5_SHAPE, "adaptive", MIXED, [(1, 1, 1), (3, 1, 1), (2, 1, 2)]),
        "gated t5": Ways(GATED_T5_SHAPE, "zb_h1", MIXED, [(2, 2, 1), (5, 1, 1), (2, 1, 2)]),
        "llama": Ways(LLAMA_SHAPE, "adaptive", MIXED, [(2, 2, 1), (4, 1, 1), (1, 1, 4), (2, 1, 2)]),
        "plain llama": Ways(PLAIN_LLAMA_SHAPE, "zb_h1", PADDED, [(3, 2, 1)], 1),
        "plain llama, cut": Ways(PLAIN_LLAMA_SHAPE, "weights last", MIXED, [(2, 1, 2)], 1, False),
        "uneven": Ways(UNEVEN_SHAPE, "1f1b", PADDED, UNEVEN_SIZES, may_spread=False),
        "uneven t5": Ways(UNEVEN_T5_SHAPE, "1f1b", PADDED, UNEVEN_SIZES, may_spread=False),
        "gpt, 1f1b": Ways(SHAPE, "1f1b", PADDED, [(2, 2, 1), (4, 1, 1), (2, 1, 2)]),
        "gpt, cyclic": Ways(SHAPE, "cyclic", PADDED, [(2, 2, 1), (4, 2, 1), (2, 2, 2)]),
        "t5, cyclic": Ways(T5_SHAPE, "cyclic", PADDED, [(3, 2, 1), (6, 1, 1), (3, 1, 2)]),
        **{
            f"{name_of(shape)} with dropout": Ways(
                dropping(shape), "zb_h1", MIXED, [(4, 2, 1), (2, 1, 2)]
            )
            for shape in (SHAPE, T5_SHAPE, GATED_T5_SHAPE)
        },
        **{
            f"{name_of(shape)}, {schedule}": Ways(shape, schedule, PADDED, sizes)
            for shape in (SHAPE, T5_SHAPE)
            for schedule, sizes in (
                ("weights last", [(1, 1, 1), (2, 1, 2)]),
                *((rule, [(3, 2, 1)]) for rule in ("zb_h1", "adaptive, split", "threes")),
            )
        },
    }
)
def test_three_steps_of_the_optimizer_give_the_unsplit_weights(way: Ways, cluster: Cluster) -> None:
    found = three_steps(
        cluster, way.schedule, BATCHES, MODES["mixed"], shape=way.shape, layouts=way.layouts
    )
    assert_equal(found, unsplit_training(BATCHES, way.shape))


def test_rows_filled_up_by_several_documents_give_the_same_gradients() -> None:
    samples, cluster = random_samples(1), Cluster(n_stages=2, device_memory_bytes=1_000_000)
    batches = [
        packed_microbatch(samples[i : i + 5], Recompute.NONE, row_tokens=512) for i in (0, 5, 10)
    ]
    assert all(m.row_tokens - m.offsets[-1] > 128 for m in batches)
    shape = SHAPE.model_copy(update={"max_tokens": 128})
    found = gradients(cluster, "1f1b", samples, batches, shape=shape)
    assert_equal(found, unsplit_gradients(samples, padded(samples), shape=shape))


@pytest.mark.parametrize(("n_stages", "n_shards"), [(1, 1), (2, 1), (1, 2), (1, 4)])
def test_sharing_out_the_optimizers_state_does_not_change_a_bit(
    n_stages: int, n_shards: int
) -> None:
    plain = Cluster(
        n_stages=n_stages, n_replicas=3, n_shards=n_shards, device_memory_bytes=1_000_000
    )
    shared_out = plain.model_copy(update={"zero_stage": 1})
    outcomes = [three_steps(cluster, "adaptive", BATCHES) for cluster in (plain, shared_out)]
    assert outcomes[0].losses == outcomes[1].losses
    assert outcomes[0].norms == outcomes[1].norms
    for name, weights in outcomes[0].tensors.items():
        assert torch.equal(outcomes[1].tensors[name], weights), name


@pytest.mark.parametrize("weighting", ["sample", "task"])
def test_other_weights_of_the_loss_are_exact_too(weighting: LossWeighting) -> None:
    samples = random_samples(7)
    found = gradients(WHOLE, "1f1b", samples, random_split(samples, 6, 7), weighting)
    assert_equal(found, unsplit_gradients(samples, padded(samples), weighting))


@pytest.mark.parametrize("schedule", ["1f1b", "cyclic"])
def test_densely_packed_rows_equal_the_same_rows_unsplit(schedule: RuleName) -> None:
    samples = random_samples(8)
    rows: list[tuple[int, ...]] = [(s.sample_id,) for s in samples if s.tokens > 12]
    short = [s.sample_id for s in samples if s.tokens <= 12]
    rows += [tuple(short[i : i + 2]) for i in range(0, len(short), 2)]
    microbatches = [DenseRows(tuple(rows[i::4]), 24) for i in range(4)]
    found = gradients(WHOLE, schedule, samples, microbatches)
    assert_equal(found, unsplit_gradients(samples, DenseRows(tuple(rows), 24)))


def random_padding(loader: TokenLoader) -> Callable[[MicroBatch], Batch]:
    """Loads with random tokens and labels where no sample is."""

    def load(microbatch: MicroBatch) -> Batch:
        read: Batch = loader(microbatch)
        for row, (sample_id,) in enumerate(microbatch.rows):
            sample, end = SAMPLES[sample_id], SAMPLES[sample_id].tokens
            if read.source and read.source.tokens is not None:
                end = sample.target_tokens
                read.source.tokens[row, max(sample.input_tokens, 1) :].random_(0, 31)
            if read.tokens is not None and read.labels is not None:
                read.tokens[row, end:].random_(0, 31)
                read.labels.ids[row, end:].random_(0, 31)
        return read

    return load


SAMPLES = {sample.sample_id: sample for sample in random_samples(9)}


@pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=name_of)
@pytest.mark.parametrize("mode", MODES)
def test_what_padding_holds_does_not_change_a_bit(mode: str, shape: ModelShape) -> None:
    samples = list(SAMPLES.values())
    microbatches = random_split(samples, 5, 9, MODES[mode], shape)
    plain = gradients(WHOLE, "1f1b", samples, microbatches, shape=shape)
    noisy = gradients(WHOLE, "1f1b", samples, microbatches, shape=shape, loading=random_padding)
    assert noisy.losses == plain.losses
    for name, gradient in plain.tensors.items():
        assert torch.equal(noisy.tensors[name], gradient), name


def test_dropout_changes_training_and_leaves_nothing_to_chance() -> None:
    shape = dropping(T5_SHAPE)
    without = unsplit_training(BATCHES[:2], shape.model_copy(update={"dropout": 0.0}))
    first, second = (unsplit_training(BATCHES[:2], shape) for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)
    assert abs(first.losses[0] - without.losses[0]) > 1e-3


PAIR_BATCHES = [random_pairs(seed) for seed in (1, 2, 3)]
LORA = LLAMA_SHAPE.model_copy(update={"lora": Lora(rank=2)})
LOSSES = {
    "smoothed": DPO._replace(label_smoothing=0.2),
    "sft": DPO._replace(sft_weight=0.7),
    "per token": DPO._replace(per_token=True),
    "ipo": PreferenceLossConfig("ipo", 0.3),
    "ipo per token": PreferenceLossConfig("ipo", 0.3, per_token=True),
}


@pytest.mark.parametrize("shape", [SHAPE, TIED_SHAPE, LLAMA_SHAPE, LORA], ids=name_of)
@pytest.mark.parametrize("mode", MODES)
def test_weights_are_those_of_separate_copies(shape: ModelShape, mode: str) -> None:
    found = preference_steps(WHOLE, PAIR_BATCHES, modes=MODES[mode], shape=shape)
    assert_equal(found, plain_steps(PAIR_BATCHES, shape=shape))


@pytest.mark.parametrize("config", LOSSES.values(), ids=LOSSES.keys())
def test_every_loss_is_that_of_its_formula(config: PreferenceLossConfig) -> None:
    (cluster,) = clusters((2, 1, 1))
    found = preference_steps(cluster, PAIR_BATCHES, config)
    assert_equal(found, plain_steps(PAIR_BATCHES, config))


@each_of(clusters((4, 2, 1), (1, 1, 1)) + spread(clusters((2, 1, 2))) + clusters((1, 1, 2)))
@pytest.mark.parametrize("n_parts", [4, 8])
def test_any_division_gives_the_same_weights(cluster: Cluster, n_parts: int) -> None:
    found = preference_steps(
        cluster, PAIR_BATCHES, shape=LLAMA_SHAPE, schedule="adaptive, split", n_parts=n_parts
    )
    assert_equal(found, plain_steps(PAIR_BATCHES, shape=LLAMA_SHAPE))


PIPELINES, SHARDS = clusters((4, 2, 1)), clusters((2, 1, 2))
slow = pytest.mark.slow


@pytest.mark.parametrize("shape", [SHAPE, LLAMA_SHAPE], ids=name_of)
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=() if mode == "mixed" else slow) for mode in MODES]
)
def test_weights_are_those_of_the_unsplit_model(
    shape: ModelShape, cuts: Sequence[float], mode: str
) -> None:
    found = sliced_steps(WHOLE, BATCHES, cuts, MODES[mode], shape)
    assert_equal(found, unsplit_training(BATCHES, shape))


@pytest.mark.parametrize("shape", [LLAMA_SHAPE, dropping(SHAPE)], ids=["llama", "dropout"])
@each_of(PIPELINES + spread(SHARDS))
def test_slices_may_have_others_beside_them_and_split_backward_passes(
    cluster: Cluster, shape: ModelShape
) -> None:
    found = sliced_steps(
        cluster, BATCHES, CUTS["unequal"], MODES["mixed"], shape, beside=True, splits=True
    )
    assert_equal(found, unsplit_training(BATCHES, shape))


CLUSTER = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=1_000_000, zero_stage=1)
SHARDED = Cluster(n_replicas=2, n_shards=4, device_memory_bytes=1_000_000, zero_stage=1)


# Two to three times what was found on one kind of processor.
ERRORS = [
    (SHAPE, torch.float32, 1.5e-7, 2e-7),
    (SHAPE, torch.float16, 8e-5, 1e-3),
    (SHAPE, torch.bfloat16, 3e-4, 5e-3),
    (T5_SHAPE, torch.float32, 2e-7, 3e-7),
    (T5_SHAPE, torch.float16, 6e-4, 4e-2),
    (T5_SHAPE, torch.bfloat16, 3e-3, 8e-2),
]


# Shards add up in every type; the narrowest shows it.
CASES = [
    *((CLUSTER, *errors) for errors in ERRORS),
    *((SHARDED, *errors) for errors in ERRORS if errors[1] == torch.bfloat16),
]


@pytest.mark.parametrize(
    ("cluster", "shape", "dtype", "of_loss", "of_norm"),
    CASES,
    ids=[
        f"{'whole' if cluster is CLUSTER else 'sharded'}-{shape.family}-{dtype}"
        for cluster, shape, dtype, *_ in CASES
    ],
)
def test_a_narrower_type_trains_alike(
    cluster: Cluster, shape: ModelShape, dtype: torch.dtype, of_loss: float, of_norm: float
) -> None:
    found = three_steps(cluster, "adaptive", BATCHES, MODES["mixed"], dtype, shape)
    expected = unsplit_training(BATCHES, shape)
    assert found.losses == pytest.approx(expected.losses, rel=of_loss)
    assert found.norms == pytest.approx(expected.norms, rel=of_norm)
    assert all(tensor.dtype == dtype for tensor in found.tensors.values())


def overflowing(loader: TokenLoader) -> Callable[[MicroBatch], Batch]:
    """Weighs one prediction in the loss so much that its gradient overflows."""

    def load(microbatch: MicroBatch) -> Batch:
        read: Batch = loader(microbatch)
        if read.labels and 4000 in microbatch.sample_ids:
            read.labels.weights[microbatch.sample_ids.index(4000), 0] = 1e9
        return read

    return load


@pytest.mark.parametrize("cluster", [CLUSTER, SHARDED], ids=["whole", "sharded"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(cluster: Cluster) -> None:
    iterations = []
    for k, samples in enumerate(BATCHES[:2]):
        replicas = over_replicas(random_split(samples, 5, k), cluster.n_replicas)
        iterations.append((samples, planned_iteration(replicas, cluster, SHAPE, "1f1b")))
    dtype = torch.float16
    start = train(cluster, [], Rank.weights, dtype=dtype)
    skipped = train(cluster, iterations[:1], Rank.weights, loading=overflowing, dtype=dtype)
    assert not math.isfinite(skipped.norms[0])
    for name, weights in start.tensors.items():
        assert torch.equal(skipped.tensors[name], weights), name
    recovered = train(cluster, iterations, Rank.weights, loading=overflowing, dtype=dtype)
    assert math.isfinite(recovered.norms[1])
    assert any(not torch.equal(recovered.tensors[n], w) for n, w in start.tensors.items())


UP_TO_8_RANKS = [
    sizes for sizes in product((1, 2, 3, 4), (1, 2), (1, 2, 4)) if math.prod(sizes) <= 8
]
SHAPES = (
    *(SHAPE, LLAMA_SHAPE, T5_SHAPE),
    *(dropping(each) for each in (TIED_SHAPE, GATED_T5_SHAPE)),
    # With less in its norms, rounding in one step would be 1e-11 of the gradients of the next.
    LLAMA_SHAPE.model_copy(update={"lora": Lora(rank=3), "norm_epsilon": 1e-3}),
)
PACKED_WAYS = [("adaptive", 1), ("zb_h1", 0), ("weights last", 1)]
PADDED_WAYS = product(("1f1b", "cyclic", "adaptive", "zb_h1", "weights last"), (0, 1))
every_cluster = each_of(clusters(*UP_TO_8_RANKS) + spread(clusters(*UP_TO_8_RANKS)))
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=name_of)


@cache
def unsplit(shape: ModelShape) -> Outcome:
    """With all logits at once."""
    return unsplit_training(BATCHES, shape)


@pytest.mark.exactness
@every_shape
@every_cluster
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("layouts", "schedule", "zero_stage"),
    [
        *((layouts, *way) for layouts, way in product(LAYOUTS.values(), PACKED_WAYS)),
        *((PADDED, *way) for way in PADDED_WAYS),
    ],
)
def test_every_way_gives_the_unsplit_losses_and_weights(
    shape: ModelShape,
    layouts: Sequence[Layout],
    cluster: Cluster,
    mode: str,
    schedule: str,
    zero_stage: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = unsplit(shape)
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 100)  # several chunks of ids
    shared = cluster.model_copy(update={"zero_stage": zero_stage})
    found = three_steps(shared, schedule, BATCHES, MODES[mode], shape=shape, layouts=layouts)
    assert_equal(found, expected)


@pytest.mark.exactness
@pytest.mark.parametrize("shape", [s for s in SHAPES if s.cache_width], ids=name_of)
@every_cluster
@pytest.mark.parametrize(
    ("cuts", "mode", "beside", "splits"),
    [
        ("one token", "none", False, True),
        ("unequal", "mixed", True, False),
        ("many", "full", True, True),
        ("many", "selective", False, False),
    ],
)
def test_every_way_to_slice_gives_the_unsplit_losses_and_weights(
    shape: ModelShape, cluster: Cluster, cuts: str, mode: str, beside: bool, splits: bool
) -> None:
    shared = cluster.model_copy(update={"zero_stage": int(splits)})
    found = sliced_steps(
        shared, BATCHES, CUTS[cuts], MODES[mode], shape, beside=beside, splits=splits
    )
    assert_equal(found, unsplit(shape))
