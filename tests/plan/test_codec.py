"""Plans as bytes, and bytes that are no plans."""

import random
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.example_plans import parse_grid, rows_of, spans_of
from tests.fuzz.random_plans import random_replicas

from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.microbatch import Branch, DenseRows, PackedRow, PaddedRows, Recompute, Slice
from dynapipe_hpc.plan.codec import VERSION, PlanFormatError, decode, encode_plans, plans_hash
from dynapipe_hpc.plan.instruction import Instruction
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction, RankPlan

PLAN = RankPlan(
    iteration=70_000_000_000,
    rank=3,
    replica=1,
    stage=1,
    hidden_size=64,
    microbatches=(
        DenseRows(((5,), (6, 2**40)), 24),
        PaddedRows((0, 1, 2), 2048, Recompute.FULL, target_tokens=256),
        PackedRow((9, 4), 64, offsets=(0, 10, 61), slice=Slice(20, 30, 2**31)),
        PackedRow(
            (3, 2),
            16,
            offsets=(0, 0, 9),
            recompute=Recompute.NONE,
            target_tokens=8,
            target_offsets=(0, 7, 8),
        ),
    ),
    instructions=rows_of(
        parse_grid(
            "rank 3 | a0<2@0 L0 a0<! F0 a0>4 a1<2@1 L1 a1<! F1 a1>4 g0<4@2 g0<! a0>! B0 g0>2"
            " g1<4@0 g1<! a1>! I1 g1>2 g0>! g1>! W1 reduce step"
        )[3]
    ),
    memory=MemoryPlan(2**36, 2**35, (2**33, 7, 6, 5), (1, 0, 0, 0), (2, 3, 4, 5)),
    prediction=Prediction(
        12.5, spans_of([(0.0, 1.25), (1.25, 3.0), (3.0, 7.0), (7.0, 0.1 + 12.0)])
    ),
    boundaries=(Boundary.ROWS, Boundary.PAIR),
    n_stream_shards=4,
)

OF_NUMPY = PaddedRows((np.int64(5),), 24)  # type: ignore[arg-type]

PLAN_OF_PAIRS = replace(
    PLAN,
    microbatches=(
        PaddedRows((0,), 8),
        PackedRow((9, 4), 64, offsets=(0, 10, 61), branches=(Branch(7, 0), Branch(60, 49))),
        PackedRow((5,), 8, offsets=(0, 8)),
        PackedRow((2,), 8, offsets=(0, 5), branches=(Branch(4, 3),)),
    ),
)


def encode(plan: RankPlan) -> bytes:
    return encode_plans([plan])[0]


def test_plans_are_written_and_read_as_they_were_released() -> None:
    released = (Path(__file__).parent / "released.plan").read_bytes()
    assert encode(PLAN_OF_PAIRS) == released
    assert decode(released) == PLAN_OF_PAIRS


@pytest.mark.parametrize("plan", [PLAN, PLAN_OF_PAIRS])
def test_every_layout_mode_and_slice_comes_back_equal(plan: RankPlan) -> None:
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, rank=-1),
        replace(PLAN, iteration=2**64),
        replace(PLAN, memory=replace(PLAN.memory, stored=(1,))),
        replace(PLAN, memory=replace(PLAN.memory, stored=(-1, 0, 0, 0))),
        replace(PLAN, memory=replace(PLAN.memory, stored=(2**64, 0, 0, 0))),
        replace(PLAN, microbatches=(OF_NUMPY, *PLAN.microbatches[1:])),
    ],
)
def test_a_plan_whose_numbers_do_not_fit_has_no_bytes(plan: RankPlan) -> None:
    with pytest.raises(PlanFormatError, match=r"cannot encode the plan of rank -?[0-9]+:"):
        encode(plan)


@pytest.mark.parametrize("seed", range(20))
def test_every_plan_of_an_iteration_holds_the_hash_of_all(seed: int) -> None:
    replicas = random_replicas(random.Random(seed))  # noqa: S311 - no secret
    plans = [plan for replica in replicas for plan in replica]
    encoded = encode_plans(plans)
    assert list(map(decode, encoded)) == plans
    (found,) = set(map(plans_hash, encoded))
    for k, plan in enumerate(plans):
        changed = [*plans[:k], replace(plan, hidden_size=plan.hidden_size + 1), *plans[k + 1 :]]
        assert found not in {plans_hash(data) for data in encode_plans(changed)}


def test_a_plan_cut_anywhere_is_refused() -> None:
    data = encode(PLAN)
    for length in range(len(data)):
        with pytest.raises(PlanFormatError, match=r"not a plan|truncated or damaged"):
            decode(data[:length])
    with pytest.raises(PlanFormatError, match="truncated or damaged"):
        decode(data + b"\0")


def test_a_plan_with_any_flipped_bit_is_refused() -> None:
    data = encode(PLAN)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PlanFormatError, match=r"damaged|version"):
            decode(bytes(flipped))


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_another_version_is_named(version: int) -> None:
    data = bytearray(encode(PLAN))
    data[8] = version
    with pytest.raises(PlanFormatError, match=f"version {version}, but this release reads 8"):
        decode(bytes(data))


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PlanFormatError):
        decode(data)


def test_every_kind_of_instruction_is_in_the_plans_kept() -> None:
    assert {type(instruction) for instruction in PLAN.instructions} == set(get_args(Instruction))
