"""Plans as bytes, cut, changed or made up; and what the kernels say of rows that are none."""

import struct

import pytest
from tests.bad_input.oracle import COUNTS, MAX_MESSAGE_CHARACTERS
from tests.examples.example_runs import example_plans

from dynapipe_hpc.plan.codec import decode, encode_plans, plans_hash
from dynapipe_hpc.plan.errors import PlanFormatError

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


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5, 6, 8, 2**32 - 1])
def test_another_version_is_named(version: int) -> None:
    magic, _, checksum = HEADER.unpack_from(GOOD)
    data = HEADER.pack(magic, version, checksum) + GOOD[NUMBERS:]
    assert f"format version {version}, but this release reads 7" in refused(data)


@pytest.mark.parametrize("data", [b"", b"\0" * 500, b"DYNAPLAN", b"DYNAPLAN" + b"\xff" * 500])
def test_what_is_no_plan_is_refused(data: bytes) -> None:
    assert refused(data)
