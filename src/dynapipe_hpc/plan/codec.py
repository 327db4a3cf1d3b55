"""Plans as bytes, little endian, which only the version that wrote them reads.

A plan is magic word, version and checksum; sixteen numbers and the iteration's time; the tables of
`_ENTRY_BYTES`, without gaps; and the hash of all plans of the iteration. The planner has checked
plans before they were encoded (`plan/check.py`); they are not checked again.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, chain, islice, pairwise
from typing import assert_never

from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import (
    Branch,
    DenseRows,
    Layout,
    MicroBatch,
    PackedRow,
    PaddedRows,
    Recompute,
    Slice,
)
from dynapipe_hpc.plan.instruction import COLUMNS, InstructionRows
from dynapipe_hpc.plan.rank_plan import MemoryPlan, PassSpans, Prediction, RankPlan

VERSION = 7
_MAGIC = b"DYNAPLAN"
_HEADER = struct.Struct("<8sI8s")  # magic word, version, checksum of all that follows
_NUMBERS = struct.Struct("<16Qd")  # ten of the plan, six counts, the iteration's time
# Rows, tokens per row, target tokens, mode, layout; of a slice its begin and the sample's tokens.
_MICROBATCH = struct.Struct("<7I")
_HASH_BYTES = 8
_NO_BRANCH = Branch(0, 0)
# Bytes per micro-batch, memory of a micro-batch, row, sample, packed sample, pass and instruction.
_ENTRY_BYTES = (_MICROBATCH.size, 3 * 8, 4, 8, 4 * 4, 2 * 8, 4 * COLUMNS)


class PlanFormatError(RunError):
    """Bytes cannot be decoded into a plan, or a plan cannot be encoded as bytes."""


def encode_plans(plans: Sequence[RankPlan]) -> list[bytes]:
    """Encodes the plans of an iteration as bytes, each with the hash of all.

    The hash is BLAKE2b of 8 bytes and also serves as the checksum, so that one pass over the bytes
    suffices. It is fast on any machine, without special instructions, and part of Python.

    `plans`: Plans of all ranks, by rank. Raises `PlanFormatError`: A number is negative or too
    large for its column, or the memory plan does not have one entry per micro-batch.
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
    microbatches, sizes, *laid_out, passes, instructions = _tables(body, numbers[10:16])
    shapes = list(_MICROBATCH.iter_unpack(microbatches))
    return RankPlan(
        iteration,
        rank,
        replica,
        stage,
        hidden_size,
        tuple(_microbatches(shapes, *laid_out)),
        InstructionRows.unpack(instructions),
        MemoryPlan(limit, static, *_columns(sizes, len(shapes))),
        Prediction(numbers[16], PassSpans.unpack(passes)),
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
    tables: dict[int, tuple[bytes, ...]] = {}  # the stages of a replica share a tuple
    bodies = []
    for plan in plans:
        try:
            if id(plan.microbatches) not in tables:
                tables[id(plan.microbatches)] = _microbatch_tables(plan.microbatches)
            bodies.append(_body(plan, tables[id(plan.microbatches)]))
        except (struct.error, ValueError) as error:
            raise PlanFormatError(
                f"iteration {plan.iteration}: cannot encode the plan of rank {plan.rank}: {error}"
            ) from error
    return bodies


def _microbatch_tables(microbatches: Sequence[MicroBatch]) -> tuple[bytes, bytes, bytes, bytes]:
    rows = [row for microbatch in microbatches for row in microbatch.rows]
    samples = list(chain.from_iterable(rows))
    shapes = [
        _MICROBATCH.pack(
            m.n_rows, m.row_tokens, m.target_tokens, m.recompute, m.layout, *_sliced(m)
        )
        for m in microbatches
    ]
    packed = [m for m in microbatches if isinstance(m, PackedRow)]
    return (
        b"".join(shapes),
        struct.pack(f"<{len(rows)}I", *map(len, rows)),
        struct.pack(f"<{len(samples)}Q", *samples),
        b"".join(map(_packed_samples, packed)),
    )


def _packed_samples(microbatch: PackedRow) -> bytes:
    branches = microbatch.branches or (_NO_BRANCH,) * len(microbatch.sample_ids)
    entries = zip(_ends(microbatch), branches, strict=True)
    return b"".join(struct.pack("<4I", *end, *branch) for end, branch in entries)


def _sliced(microbatch: MicroBatch) -> tuple[int, int]:
    """Start of a slice, and the tokens of its sample; zeros if no sample is sliced."""
    part = microbatch.slice if isinstance(microbatch, PackedRow) else None
    return (part.begin, part.n_tokens) if part else (0, 0)


def _ends(microbatch: PackedRow) -> Iterator[tuple[int, int]]:
    target_offsets = microbatch.target_offsets or (0,) * len(microbatch.offsets)
    return islice(zip(microbatch.offsets, target_offsets, strict=True), 1, None)


def _body(plan: RankPlan, microbatch_tables: tuple[bytes, ...]) -> tuple[bytes, ...]:
    microbatches, row_sizes, samples, packed = microbatch_tables
    n, passes_ms = len(plan.microbatches), plan.prediction.passes_ms
    numbers = _NUMBERS.pack(
        *(plan.iteration, plan.rank, plan.replica, plan.stage, plan.hidden_size),
        *plan.memory.bounds,
        *plan.boundaries,
        plan.n_stream_shards,
        *(n, len(row_sizes) // 4, len(samples) // 8, len(packed) // _ENTRY_BYTES[4]),
        *(len(passes_ms), len(plan.instructions)),
        plan.prediction.iteration_ms,
    )
    sizes = b"".join(struct.pack(f"<{n}Q", *column) for column in plan.memory.sizes)
    tables = (microbatches, sizes, row_sizes, samples, packed, passes_ms.pack())
    return (numbers, *tables, plan.instructions.pack())


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


def _tables(body: memoryview, counts: tuple[int, ...]) -> list[memoryview]:
    n_entries = (counts[0], *counts)  # the memory table has one entry per micro-batch, too
    sizes = (n * size for n, size in zip(n_entries, _ENTRY_BYTES, strict=True))
    ends = accumulate(sizes, initial=_NUMBERS.size)
    return [body[start:end] for start, end in pairwise(ends)]


def _columns(sizes: memoryview, n_microbatches: int) -> Iterator[tuple[int, ...]]:
    entries = struct.unpack(f"<{3 * n_microbatches}Q", sizes)
    return (entries[k * n_microbatches : (k + 1) * n_microbatches] for k in range(3))


def _microbatches(
    shapes: Sequence[tuple[int, ...]],
    row_sizes: memoryview,
    samples: memoryview,
    packed: memoryview,
) -> Iterator[MicroBatch]:
    sample_rows = _sample_rows(row_sizes, samples, [n_rows for n_rows, *_ in shapes])
    spans = struct.iter_unpack("<4I", packed)
    for rows, shape in zip(sample_rows, shapes, strict=True):
        _, row_tokens, target_tokens, mode, layout, begin, n_tokens = shape
        recompute, kind = Recompute(mode), Layout(layout)
        match kind:
            case Layout.PADDED:
                sample_ids = tuple(chain.from_iterable(rows))
                yield PaddedRows(sample_ids, row_tokens, recompute, target_tokens)
            case Layout.DENSE:
                yield DenseRows(rows, row_tokens, recompute, target_tokens)
            case Layout.PACKED:
                of_samples = list(islice(spans, len(rows[0])))
                offsets = (0, *(end for end, *_ in of_samples))
                target_offsets = (0, *(end for _, end, *_ in of_samples))
                branches = tuple(Branch(*each[2:]) for each in of_samples)
                yield PackedRow(
                    sample_ids=rows[0],
                    row_tokens=row_tokens,
                    offsets=offsets,
                    recompute=recompute,
                    target_tokens=target_tokens,
                    target_offsets=target_offsets if target_tokens else (),
                    slice=Slice(begin, begin + offsets[1], n_tokens) if n_tokens else None,
                    branches=branches if any(map(any, branches)) else (),
                )
            case _:
                assert_never(kind)


def _sample_rows(
    row_sizes: memoryview, samples: memoryview, n_rows: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    sizes = struct.unpack(f"<{len(row_sizes) // 4}I", row_sizes)
    ids = iter(struct.unpack(f"<{len(samples) // 8}Q", samples))
    rows = (tuple(islice(ids, size)) for size in sizes)
    return (tuple(islice(rows, n)) for n in n_rows)
