"""Plans as bytes, cut, changed or made up; and what the kernels say of rows that are none."""

import random
import struct
from collections.abc import Iterator
from hashlib import blake2b

import pytest
from tests.bad_input.oracle import COUNTS, MAX_MESSAGE_CHARACTERS
from tests.examples.example_runs import example_plans
from tests.fuzz.random_plans import random_replicas

from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.codec import decode, encode_plans, plans_hash
from dynapipe_hpc.plan.errors import PlanError, PlanFormatError

HEADER = struct.Struct("<8sI8s")
GOOD = encode_plans(example_plans())[0]
NUMBERS = HEADER.size
COUNTS_AT = NUMBERS + 10 * 8


def refused(data: bytes) -> str:
    """The message; both readers refuse alike."""
    COUNTS["tried plans"] += 1
    with pytest.raises(PlanFormatError) as error:
        decode(data)
    message = str(error.value)
    assert "plan" in message
    assert len(message) <= MAX_MESSAGE_CHARACTERS
    COUNTS["refused plans"] += 1
    return message


def summed(content: bytes) -> bytes:
    """With a checksum that is right."""
    magic, version, _ = HEADER.unpack_from(GOOD)
    return HEADER.pack(magic, version, blake2b(content, digest_size=8).digest()) + content


def with_count(place: int, value: int) -> bytes:
    """Another number of entries in one of the tables."""
    content = bytearray(GOOD[NUMBERS:])
    struct.pack_into("<Q", content, COUNTS_AT - NUMBERS + 8 * place, value)
    return summed(bytes(content))


def test_a_cut_plan_is_refused_wherever_it_is_cut() -> None:
    for n_bytes in range(len(GOOD)):
        assert "not a plan" in (message := refused(GOOD[:n_bytes])) or "truncated" in message
        with pytest.raises(PlanFormatError):
            plans_hash(GOOD[:n_bytes])


def test_a_changed_bit_is_refused_wherever_it_is() -> None:
    for place in range(len(GOOD)):
        changed = bytearray(GOOD)
        changed[place] ^= 1 << place % 8
        assert refused(bytes(changed))


@pytest.mark.parametrize("behind", [b"\0", bytes(20), GOOD])
def test_bytes_behind_a_plan_are_refused(behind: bytes) -> None:
    assert refused(GOOD + behind)
    assert "tables need" in refused(summed(GOOD[NUMBERS:-8] + behind + GOOD[-8:]))


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5, 6, 8, 2**32 - 1])
def test_another_version_is_named(version: int) -> None:
    magic, _, checksum = HEADER.unpack_from(GOOD)
    data = HEADER.pack(magic, version, checksum) + GOOD[NUMBERS:]
    assert f"format version {version}, but this release reads 7" in refused(data)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (place, value)
        for place in range(6)
        for value in (0, 5, 2**31, 2**40, 2**63, 2**64 - 1)
        if (place, value) != (3, 0)  # the plan has no packed samples
    ],
)
def test_counts_that_do_not_fit_are_refused_before_memory_is_taken(place: int, value: int) -> None:
    assert "tables need" in refused(with_count(place, value))


@pytest.mark.parametrize("data", [b"", b"\0" * 500, b"DYNAPLAN", b"DYNAPLAN" + b"\xff" * 500])
def test_what_is_no_plan_is_refused(data: bytes) -> None:
    assert refused(data)


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(3, 30))],
)
def test_plans_with_a_right_checksum_are_refused_checked_or_the_same(seed: int) -> None:
    """As from a planner that is wrong: nothing but the two errors for plans may come of it."""
    draw = random.Random(seed)  # noqa: S311
    for replica in random_replicas(draw):
        for changed in _changed(draw, encode_plans(replica)):
            try:
                check_plans(list(map(decode, changed)))
            except (PlanFormatError, PlanError) as error:
                assert len(str(error)) <= 10_000, str(error)
                COUNTS["tried plans"] += 1
                COUNTS["refused plans"] += 1
            else:
                COUNTS["harmless plans"] += 1


def _changed(draw: random.Random, plans: list[bytes]) -> Iterator[list[bytes]]:
    for _ in range(100):
        which = draw.randrange(len(plans))
        content = bytearray(plans[which][NUMBERS:])
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(content))
            content[place] = draw.choice((0, 1, 2, 11, 127, 128, 255, draw.randrange(256)))
        yield [*plans[:which], summed(bytes(content)), *plans[which + 1 :]]
