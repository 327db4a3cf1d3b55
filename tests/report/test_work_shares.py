"""Shares of operations, against counting tokens and pairs one by one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.examples.example_runs import example_plans

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PackedRow, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.report.work_shares import PassShares, PassWork

WIDTH, INNER = 8, 32
LINEAR = 8 * WIDTH**2 + 4 * WIDTH * INNER  # operations of a layer per token
PER_PAIR = 4 * WIDTH
GPT = GptShape(
    n_layers=3, hidden_size=WIDTH, n_heads=2, ffn_size=INNER, vocab_size=11, max_tokens=64
)
LENGTHS = {0: 5, 1: 9, 2: 3, 3: 2}
SAMPLES = [Sample(i, n - 1, 1) for i, n in LENGTHS.items()]


def in_the_middle(microbatch: MicroBatch) -> PassShares:
    """Shares on a stage that holds one layer of a GPT and nothing else."""
    return shares(PassWork(GPT, Placement((1, 1, 1))), microbatch, 1, SAMPLES)


def shares(
    work: PassWork, microbatch: MicroBatch, stage: int, samples: Sequence[Sample]
) -> PassShares:
    plan = replace(example_plans()[0], microbatches=(microbatch,), stage=stage)
    ((found,),) = work.shares([plan], samples)
    assert sum(found.forward) == pytest.approx(1)
    assert sum(found.backward) == pytest.approx(1)
    return found


def counted(rows: Sequence[Sequence[int]], row_tokens: int) -> tuple[float, float, float]:
    """Operations of a layer that are real, padding and across documents, position by position."""
    real = padding = across = 0
    for row in rows:
        owners = [sample for sample in row for _ in range(LENGTHS[sample])]
        owners += [-1] * (row_tokens - len(owners))
        for own in owners:
            real, padding = (real + LINEAR, padding) if own >= 0 else (real, padding + LINEAR)
            for other in owners:
                if own < 0 or other < 0:
                    padding += PER_PAIR
                elif own == other:
                    real += PER_PAIR
                else:
                    across += PER_PAIR
    total = real + padding + across
    return real / total, padding / total, across / total


@pytest.mark.parametrize("microbatch", [PaddedRows((0, 1, 2), 16), DenseRows(((0, 1), (2, 3)), 16)])
def test_shares_are_those_of_counting_every_pair(microbatch: MicroBatch) -> None:
    found = in_the_middle(microbatch)
    assert found.forward == pytest.approx((*counted(microbatch.rows, 16), 0))
    assert found.backward == pytest.approx(found.forward)


def test_the_shares_of_a_microbatch_do_not_depend_on_the_others_of_its_plan() -> None:
    microbatches: tuple[MicroBatch, ...] = (
        DenseRows(((0, 1), (2, 3)), 16),
        PackedRow((0, 1, 2), 24, offsets=(0, 5, 14, 17)),
        PaddedRows((1, 0, 3), 16, recompute=Recompute.FULL),
    )
    plan = replace(example_plans()[0], microbatches=microbatches, stage=1)
    (together,) = PassWork(GPT, Placement((1, 1, 1))).shares([plan], SAMPLES)
    for microbatch, found in zip(microbatches, together, strict=True):
        alone = in_the_middle(microbatch)
        assert found.forward == pytest.approx(alone.forward)
        assert found.backward == pytest.approx(alone.backward)


def test_packed_rows_have_no_attention_across_documents_and_little_padding() -> None:
    packed = PackedRow((0, 1, 2), 24, offsets=(0, 5, 14, 17))
    pairs = 25 + 81 + 9
    total = 24 * LINEAR + pairs * PER_PAIR
    expected = ((17 * LINEAR + pairs * PER_PAIR) / total, 7 * LINEAR / total, 0, 0)
    assert in_the_middle(packed).forward == pytest.approx(expected)


def test_a_recomputed_layer_is_a_third_of_its_backward_pass() -> None:
    found = in_the_middle(PaddedRows((0, 1), 16, recompute=Recompute.FULL))
    assert found.forward.recomputed == 0
    assert found.backward.recomputed == pytest.approx(1 / 3)
    assert found.backward.padding == pytest.approx(found.forward.padding * 2 / 3)


def test_the_head_counts_on_the_stage_that_holds_it() -> None:
    work = PassWork(GPT, Placement((1, 1, 1)))
    last = shares(work, PaddedRows((1,), 16), 2, SAMPLES)
    head = 2 * WIDTH * 11
    total = 16 * (LINEAR + head) + 256 * PER_PAIR
    assert last.forward.real == pytest.approx((9 * (LINEAR + head) + 81 * PER_PAIR) / total)
    assert last.backward.recomputed == pytest.approx(16 * head / (2 * total + 16 * head))


def test_a_decoder_attends_to_both_sides() -> None:
    shape = T5Shape.model_validate(
        {**GPT.model_dump(exclude_defaults=True), "head_size": WIDTH // 2}
    )
    samples = [Sample(0, 6, 2), Sample(1, 4, 3)]
    microbatch = PaddedRows((0, 1), 8, target_tokens=4)
    found = shares(PassWork(shape, Placement((3, 1, 1, 1))), microbatch, 2, samples)
    # Its own maps, cross-attention's for queries and output, and those for keys and values.
    own, source = LINEAR + 4 * WIDTH**2, 4 * WIDTH**2
    real = 5 * own + 10 * source + (2 * 8 + 3 * 7) * PER_PAIR
    total = 8 * own + 16 * source + 2 * 4 * 12 * PER_PAIR
    assert found.forward == pytest.approx((real / total, 1 - real / total, 0, 0))


def test_every_replica_has_its_own_shares_and_stages_alike_have_the_same() -> None:
    microbatches = (PaddedRows((0,), 16), PaddedRows((1,), 16))
    plans = [
        replace(example_plans()[0], replica=r, stage=s, microbatches=(microbatches[r],))
        for r in range(2)
        for s in range(4)
    ]
    shape = GPT.model_copy(update={"n_layers": 4})
    found = PassWork(shape, Placement((1, 1, 1, 1))).shares(plans, SAMPLES)
    real = [shares.forward.real for (shares,) in found]
    assert real[1] == real[2] == in_the_middle(microbatches[0]).forward.real
    assert real[5] == real[6] == in_the_middle(microbatches[1]).forward.real
    assert real[0] != real[1] != real[3]
