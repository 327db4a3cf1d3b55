"""Plans as bytes, little endian, which only the version that wrote them reads.

A plan is magic word, version and checksum; thirteen numbers and the iteration's time; its
micro-batches as JSON, and the tables of memory, times and instructions; and the hash of all plans
of the iteration. The planner has checked plans before they were encoded (`plan/check.py`); they are
not checked again.
"""

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate, chain, pairwise
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter

from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import DenseRows, PackedRow, PaddedRows
from dynapipe_hpc.plan.instruction import COLUMNS, InstructionRows
from dynapipe_hpc.plan.rank_plan import MemoryPlan, PassSpans, Prediction, RankPlan

VERSION = 8
_MAGIC = b"DYNAPLAN"
_HEADER = struct.Struct("<8sI8s")  # magic word, version, checksum of all that follows
# Ten numbers of the plan, the sizes of its first three tables in bytes, the iteration's time.
_NUMBERS = struct.Struct("<13Qd")
_HASH_BYTES = 8
_SIZE, _TIME, _ENTRY = np.dtype("<u8"), np.dtype("<f8"), np.dtype("<u4")  # of the three tables
# The first class whose fields are all there: only packed rows have offsets, only dense ones rows.
_MicroBatch = Annotated[PackedRow | DenseRows | PaddedRows, Field(union_mode="left_to_right")]
_MICROBATCHES = TypeAdapter(tuple[_MicroBatch, ...])


class PlanFormatError(RunError):
    """Bytes cannot be decoded into a plan, or a plan cannot be encoded as bytes."""


def encode_plans(plans: Sequence[RankPlan]) -> list[bytes]:
    """Encodes the plans of an iteration as bytes, each with the hash of all.

    The hash is BLAKE2b of 8 bytes and also serves as the checksum, so that one pass over the bytes
    suffices. It is fast on any machine, without special instructions, and part of Python.

    `plans`: Plans of all ranks, by rank. Raises `PlanFormatError`: A number of the plan or of
    its memory is negative or too large, a micro-batch has a field of the wrong type, or
    the memory plan does not have one entry per micro-batch.
    """
    bodies = _bodies(plans)
    # A hash object can continue after its digest was taken.
    hashes = list(map(_hash_of, bodies))
    of_all = blake2b(b"".join(h.digest() for h in hashes), digest_size=_HASH_BYTES).digest()
    for one in hashes:
        one.update(of_all)
    return [
        b"".join((_HEADER.pack(_MAGIC, VERSION, one.digest()), *body, of_all))
        for one, body in zip(hashes, bodies, strict=True)
    ]


def decode(data: bytes) -> RankPlan:
    """Decodes the plan that `encode_plans` turned into these bytes; raises `PlanFormatError`."""
    body = _checked_body(data)
    numbers = _NUMBERS.unpack_from(body)
    iteration, rank, replica, stage, hidden_size, limit, static, before, after, parts = numbers[:10]
    ends = accumulate(numbers[10:13], initial=_NUMBERS.size)
    microbatches, memory, passes, instructions = (
        body[start:end] for start, end in pairwise((*ends, len(body)))
    )
    sizes = np.frombuffer(memory, _SIZE).reshape(3, -1)
    # Tables begin at any byte; astype copies them to where arrays may lie.
    times = np.frombuffer(passes, _TIME).reshape(-1, 2).astype(np.float64)
    rows = np.frombuffer(instructions, _ENTRY).reshape(-1, COLUMNS).astype(np.uint32)
    return RankPlan(
        iteration,
        rank,
        replica,
        stage,
        hidden_size,
        _MICROBATCHES.validate_json(bytes(microbatches)),
        InstructionRows(rows),
        MemoryPlan(limit, static, *map(tuple, sizes.tolist())),
        Prediction(numbers[13], PassSpans(times)),
        (Boundary(before), Boundary(after)),
        parts,
    )


def plans_hash(data: bytes) -> int:
    """Hash over the plans of all ranks that is stored in an encoded plan.

    Raises `PlanFormatError`: As for `decode`.
    """
    _checked_body(data)
    return int.from_bytes(data[-_HASH_BYTES:], "little")


def _hash_of(parts: Iterable[bytes]) -> blake2b:
    checksum = blake2b(digest_size=_HASH_BYTES)
    for part in parts:
        checksum.update(part)
    return checksum


def _bodies(plans: Sequence[RankPlan]) -> list[tuple[bytes, ...]]:
    """The bytes of every plan between its checksum and the hash of all, in parts."""
    encoded: dict[int, bytes] = {}  # the stages of a replica share a tuple of micro-batches
    bodies = []
    for plan in plans:
        shared = id(plan.microbatches)
        try:
            if shared not in encoded:
                encoded[shared] = _MICROBATCHES.dump_json(plan.microbatches, warnings="error")
            bodies.append(_body(plan, encoded[shared]))
        except (struct.error, ValueError) as error:
            raise PlanFormatError(
                f"iteration {plan.iteration}: cannot encode the plan of rank {plan.rank}: {error}"
            ) from error
    return bodies


def _body(plan: RankPlan, microbatches: bytes) -> tuple[bytes, ...]:
    n_sizes = 3 * len(plan.microbatches)
    memory = struct.pack(f"<{n_sizes}Q", *chain.from_iterable(plan.memory.sizes))
    passes = plan.prediction.passes_ms.table.astype(_TIME, copy=False).tobytes()
    instructions = plan.instructions.table.astype(_ENTRY, copy=False).tobytes()
    numbers = _NUMBERS.pack(
        *(plan.iteration, plan.rank, plan.replica, plan.stage, plan.hidden_size),
        *plan.memory.bounds,
        *plan.boundaries,
        plan.n_stream_shards,
        *map(len, (microbatches, memory, passes)),
        plan.prediction.iteration_ms,
    )
    return (numbers, microbatches, memory, passes, instructions)


def _checked_body(data: bytes) -> memoryview:
    """The bytes between header and hash, after checking them."""
    if len(data) < _HEADER.size + _NUMBERS.size + _HASH_BYTES or not data.startswith(_MAGIC):
        raise PlanFormatError(f"these {len(data)} bytes are not a plan, or are damaged")
    _, version, checksum = _HEADER.unpack_from(data)
    if version != VERSION:
        raise PlanFormatError(
            f"the plan has format version {version}, but this release reads "
            f"{VERSION}; read it with the release that wrote it"
        )
    content = memoryview(data)[_HEADER.size :]
    if blake2b(content, digest_size=_HASH_BYTES).digest() != checksum:
        raise PlanFormatError(
            f"the plan is truncated or damaged: its {len(data)} bytes fail the checksum"
        )
    return content[:-_HASH_BYTES]
