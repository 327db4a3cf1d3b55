"""Plans as bytes, and bytes that are no plans."""

import struct
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.example_plans import drawn_plans
from tests.examples.plan_text import parse_grid

from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.microbatch import (
    Branch,
    DenseRows,
    PackedRow,
    PaddedRows,
    Recompute,
    Slice,
)
from dynapipe_hpc.plan.codec import VERSION, decode, encode_plans, plans_hash
from dynapipe_hpc.plan.errors import PlanFormatError
from dynapipe_hpc.plan.instruction import Instruction, Load
from dynapipe_hpc.plan.instruction_rows import InstructionRows
from dynapipe_hpc.plan.pass_spans import PassSpans
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction, RankPlan

OLD = Path(__file__).parent / "old"
HEADER_BYTES = 20
HASH_BYTES = 8

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
    instructions=InstructionRows.from_instructions(
        parse_grid(
            "rank 3 | a0<2@0 L0 a0<! F0 a0>4 a1<2@1 L1 a1<! F1 a1>4 g0<4@2 g0<! a0>! B0 g0>2"
            " g1<4@0 g1<! a1>! I1 g1>2 g0>! g1>! W1 reduce step"
        )[3]
    ),
    memory=MemoryPlan(2**36, 2**35, (2**33, 7, 6, 5), (1, 0, 0, 0), (2, 3, 4, 5)),
    prediction=Prediction(
        12.5, PassSpans.from_times([(0.0, 1.25), (1.25, 3.0), (3.0, 7.0), (7.0, 0.1 + 12.0)])
    ),
    boundaries=(Boundary.ROWS, Boundary.PAIR),
    n_stream_shards=4,
)


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
    """The bytes of an iteration of one rank."""
    return encode_plans([plan])[0]


def test_the_latest_version_is_written_and_read_as_it_was_released() -> None:
    released = (OLD / f"v{VERSION}.plan").read_bytes()
    assert encode(PLAN_OF_PAIRS) == released
    assert decode(released) == PLAN_OF_PAIRS


@pytest.mark.parametrize("version", range(1, VERSION))
def test_plans_of_older_versions_are_refused_by_name(version: int) -> None:
    message = f"version {version}, but this release reads 7; re"
    with pytest.raises(PlanFormatError, match=message):
        decode((OLD / f"v{version}.plan").read_bytes())


def test_a_plan_of_every_version_is_kept() -> None:
    assert {path.name for path in OLD.iterdir()} == {f"v{k + 1}.plan" for k in range(VERSION)}


@given(drawn_plans())
def test_a_plan_comes_back_equal(plans: list[RankPlan]) -> None:
    for plan in plans:
        assert decode(encode(plan)) == plan


def test_a_plan_without_micro_batches_comes_back_equal() -> None:
    empty = replace(
        PLAN,
        microbatches=(),
        instructions=PLAN.instructions[-2:],
        memory=MemoryPlan(1, 1, (), (), ()),
        prediction=Prediction(0.0, PassSpans.from_times([])),
    )
    assert decode(encode(empty)) == empty


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, rank=-1),
        replace(PLAN, iteration=2**64),
        replace(PLAN, memory=replace(PLAN.memory, stored=(1,))),
    ],
)
def test_a_plan_whose_numbers_do_not_fit_has_no_bytes(plan: RankPlan) -> None:
    with pytest.raises(PlanFormatError, match=r"cannot encode the plan of rank -?[0-9]+:"):
        encode(plan)


def test_an_instruction_whose_numbers_do_not_fit_has_no_row() -> None:
    for number in (-1, 2**32):
        with pytest.raises(PlanFormatError, match="cannot encode an instruction"):
            InstructionRows.from_instructions([Load(number)])


@given(drawn_plans())
def test_every_plan_of_an_iteration_holds_the_hash_of_all(plans: list[RankPlan]) -> None:
    (found,) = {plans_hash(data) for data in encode_plans(plans)}
    assert {plans_hash(data) for data in encode_plans(plans)} == {found}
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
        with pytest.raises(PlanFormatError, match=r"damaged|version|tables need"):
            decode(bytes(flipped))


def test_another_version_is_named() -> None:
    data = bytearray(encode(PLAN))
    data[8] = 9
    with pytest.raises(PlanFormatError, match="version 9, but this release reads 7"):
        decode(bytes(data))


def with_right_checksum(data: bytes) -> bytes:
    body, of_all = data[HEADER_BYTES:-HASH_BYTES], hash_of(hash_of(data[HEADER_BYTES:-HASH_BYTES]))
    return data[: HEADER_BYTES - HASH_BYTES] + hash_of(body + of_all) + body + of_all


def hash_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=HASH_BYTES).digest()


@settings(max_examples=500)
@given(st.data(), st.sampled_from([PLAN, PLAN_OF_PAIRS]))
def test_wrong_content_under_a_right_checksum_is_refused_or_read_as_another_plan(
    data: st.DataObject, plan: RankPlan
) -> None:
    written = bytearray(encode(plan))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_BYTES, len(written) - HASH_BYTES - 4))
        number = data.draw(st.sampled_from([0, 1, 2, 255, 2**31, 2**32 - 1]))
        written[at : at + 4] = struct.pack("<I", number)
    forged = with_right_checksum(bytes(written))
    try:
        read = decode(forged)
    except PlanFormatError:
        return
    assert encode(read) == forged


def replaced(offset: int, number: int, plan: RankPlan = PLAN) -> bytes:
    data = bytearray(encode(plan))
    struct.pack_into("<I", data, offset, number)
    return with_right_checksum(bytes(data))


COUNTS = HEADER_BYTES + 10 * 8
TABLES = COUNTS + 6 * 8 + 8
PACKED = TABLES + 4 * (28 + 24) + 7 * 4 + 10 * 8
FIRST_ROW = len(encode(PLAN)) - HASH_BYTES - 20 * len(PLAN.instructions)


@pytest.mark.parametrize(
    ("offset", "number", "message"),
    [
        (COUNTS, 2**32 - 1, "the plan's tables need [0-9]+ bytes, but it has [0-9]+"),
        (COUNTS + 4, 2**32 - 1, "the plan's tables need [0-9]+ bytes, but it has [0-9]+"),
        (TABLES, 1, "do not add up to its rows and samples"),
        (TABLES + 12, 3, "unknown mode or layout: 3 is not a valid Recompute"),
        (TABLES + 16, 3, "unknown mode or layout: 3 is not a valid Layout"),
        (TABLES + 2 * 28 + 16, 0, "has a slice, but is no packed row"),
        (TABLES + 16, 0, "a padded micro-batch of the plan has a row of several samples"),
        (TABLES + 16, 2, "lacks samples or has several rows"),
        (TABLES + 3 * 28 + 20, 1, "has a slice, but is no packed row"),
        (TABLES + 28 + 24, 9, "has a slice, but is no packed row"),
        (TABLES + 2 * 28 + 24, 29, "a slice of tokens 20 to 30 of a sample of 29"),
        (TABLES + 2 * 28 + 24, 0, "a slice of tokens 20 to 30 of a sample of 0"),
        (TABLES + 3 * 28 + 16, 1, "more packed samples than its packed micro-batches"),
        (PACKED, 0, "a slice of tokens 20 to 20 of a sample of 2147483648"),
        (PACKED, 62, "do not lie in its row"),
        (PACKED + 16, 65, "do not lie in its row"),
        (PACKED + 4, 1, "do not lie in its row"),
        (TABLES + 4 * 28 + 4, 2**31, "which is beyond 9223372036854775807"),
        (COUNTS - 8, 0, "divides tokens among 0 shards"),
        (COUNTS - 16, 2, "unknown boundary: 2 is not a valid Boundary"),
        (FIRST_ROW, 11, "unknown kind 11"),
        (FIRST_ROW + 4, 4, "an instruction on micro-batch 4 of 4"),
        (FIRST_ROW + 8, 2, r"malformed row \(5, 0, 2, 2, 0\)"),
        (FIRST_ROW + 20 + 12, 1, r"malformed row \(0, 0, 0, 1, 0\)"),
    ],
)
def test_wrong_content_is_named(offset: int, number: int, message: str) -> None:
    with pytest.raises(PlanFormatError, match=message):
        decode(replaced(offset, number))


PACKED_PAIRS = TABLES + 4 * (28 + 24) + 4 * 4 + 5 * 8


@pytest.mark.parametrize(
    ("offset", "number", "message"),
    [
        (PACKED_PAIRS + 8, 0, "at 0, behind a prompt of 0 tokens, in a sample from 0 to 10"),
        (PACKED_PAIRS + 8, 10, "at 10, behind a prompt of 0 tokens, in a sample from 0 to 10"),
        (PACKED_PAIRS + 16 + 12, 50, "at 60, behind a prompt of 50 tokens, in a sample from 10 to"),
        (PACKED_PAIRS + 2 * 16 + 12, 1, "at 0, behind a prompt of 1 tokens, in a sample from 0"),
        (TABLES + 28 + 24, 99, "preference pairs of the plan are sliced, or in two rows"),
    ],
)
def test_a_wrong_place_of_a_rejected_answer_is_named(
    offset: int, number: int, message: str
) -> None:
    with pytest.raises(PlanFormatError, match=message):
        decode(replaced(offset, number, PLAN_OF_PAIRS))


def test_an_empty_row_is_refused() -> None:
    with pytest.raises(PlanFormatError, match="empty micro-batch or row"):
        decode(encode(replace(PLAN, microbatches=(DenseRows(((),), 8), *PLAN.microbatches[1:]))))


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PlanFormatError):
        decode(data)


def test_every_kind_of_instruction_is_in_the_plans_kept() -> None:
    assert {type(instruction) for instruction in PLAN.instructions} == set(get_args(Instruction))
