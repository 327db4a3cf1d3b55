"""Plans as bytes. The layout is in docs/formats.md; all numbers are little endian."""

import struct
import zlib
from collections.abc import Iterator
from itertools import accumulate, chain, islice, pairwise

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.plan.errors import PlanFormatError
from dynapipe_hpc.plan.instruction_rows import INSTRUCTION, pack_instructions, unpack_instructions
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction, RankPlan

__all__ = ["VERSION", "PlanFormatError", "decode", "encode"]

VERSION = 1
_MAGIC = b"DYNAPLAN"
_HEADER = struct.Struct("<8sII")  # magic word, version, checksum of all that follows
_NUMBERS = struct.Struct("<12Qd")  # seven of the plan, five counts, the iteration's time
_MICROBATCH = struct.Struct("<3I3Q")  # rows, tokens per row, mode, three columns of memory
_ROW_SIZE = struct.Struct("<I")  # samples in one row of a micro-batch
_SAMPLE = struct.Struct("<Q")  # id of a sample
_PASS = struct.Struct("<2d")  # start, end
_TABLES = (_MICROBATCH, _ROW_SIZE, _SAMPLE, _PASS, INSTRUCTION)


def encode(plan: RankPlan) -> bytes:
    """A plan as bytes, which `decode` turns back into an equal plan.

    Raises:
        PlanFormatError: A number is negative or too large for its column, or the memory plan
            has not one entry per micro-batch.
    """
    try:
        body = b"".join(_sections(plan))
    except (struct.error, ValueError) as error:
        raise PlanFormatError(
            f"iteration {plan.iteration}: the plan of rank {plan.rank} has no bytes: {error}"
        ) from error
    return _HEADER.pack(_MAGIC, VERSION, zlib.crc32(body)) + body


def decode(data: bytes) -> RankPlan:
    """The plan that `encode` made these bytes from.

    Raises:
        PlanFormatError: The bytes are cut, damaged, of another version or no plan at all.
    """
    body = _checked_body(data)
    numbers = _NUMBERS.unpack_from(body)
    iteration, rank, replica, stage, hidden_size, limit, static = numbers[:7]
    microbatches, row_sizes, samples, passes, instructions = _tables(body, numbers[7:12])
    columns = tuple(zip(*_MICROBATCH.iter_unpack(microbatches), strict=True)) or ((),) * 6
    n_rows, row_tokens, modes, *bytes_per_microbatch = columns
    sample_rows = _sample_rows(row_sizes, samples, n_rows)
    return RankPlan(
        iteration,
        rank,
        replica,
        stage,
        hidden_size,
        tuple(map(MicroBatch, sample_rows, row_tokens, map(_recompute, modes))),
        tuple(unpack_instructions(instructions, len(n_rows))),
        MemoryPlan(limit, static, *bytes_per_microbatch),
        Prediction(numbers[12], tuple(_PASS.iter_unpack(passes))),
    )


def _sections(plan: RankPlan) -> Iterator[bytes]:
    memory, passes_ms = plan.memory, plan.prediction.passes_ms
    rows = [row for microbatch in plan.microbatches for row in microbatch.rows]
    samples = list(chain.from_iterable(rows))
    tables = (plan.microbatches, rows, samples, passes_ms, plan.instructions)
    yield _NUMBERS.pack(
        *(plan.iteration, plan.rank, plan.replica, plan.stage, plan.hidden_size),
        *(memory.limit, memory.static),
        *map(len, tables),
        plan.prediction.iteration_ms,
    )
    shapes = [(m.n_rows, m.row_tokens, m.recompute) for m in plan.microbatches]
    columns = (shapes, memory.stored, memory.forward_transient, memory.backward_transient)
    yield from (_MICROBATCH.pack(*shape, *b) for shape, *b in zip(*columns, strict=True))
    yield struct.pack(f"<{len(rows)}I", *map(len, rows))
    yield struct.pack(f"<{len(samples)}Q", *samples)
    yield from (_PASS.pack(*times) for times in passes_ms)
    yield pack_instructions(plan.instructions)


def _checked_body(data: bytes) -> memoryview:
    """What follows the header, once header and checksum are right."""
    if len(data) < _HEADER.size + _NUMBERS.size or not data.startswith(_MAGIC):
        raise PlanFormatError(f"{len(data)} bytes are no plan, or their start is damaged")
    _, version, checksum = _HEADER.unpack_from(data)
    if version != VERSION:
        raise PlanFormatError(
            f"the plan has format version {version}, but this release reads {VERSION}; "
            "read it with the release that wrote it"
        )
    body = memoryview(data)[_HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise PlanFormatError(
            f"the plan is cut or damaged: its {len(data)} bytes fail the checksum"
        )
    return body


def _tables(body: memoryview, counts: tuple[int, ...]) -> list[memoryview]:
    """The tables behind the numbers, in the order of `_TABLES`."""
    sizes = (count * table.size for count, table in zip(counts, _TABLES, strict=True))
    ends = list(accumulate(sizes, initial=_NUMBERS.size))
    if ends[-1] != len(body):
        raise PlanFormatError(f"the plan's tables need {ends[-1]} bytes, but it has {len(body)}")
    return [body[start:end] for start, end in pairwise(ends)]


def _recompute(number: int) -> Recompute:
    try:
        return Recompute(number)
    except ValueError as error:
        raise PlanFormatError(f"the plan has a micro-batch of an unknown mode: {error}") from None


def _sample_rows(
    row_sizes: memoryview, samples: memoryview, n_rows: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Sample ids, row by row, of every micro-batch."""
    sizes = [size for (size,) in _ROW_SIZE.iter_unpack(row_sizes)]
    if sum(n_rows) != len(sizes) or sum(sizes) * _SAMPLE.size != len(samples):
        raise PlanFormatError("the plan's micro-batches do not add up to its rows and samples")
    if 0 in n_rows or 0 in sizes:
        raise PlanFormatError("the plan has an empty micro-batch or row")
    ids = (sample_id for (sample_id,) in _SAMPLE.iter_unpack(samples))
    rows = (tuple(islice(ids, size)) for size in sizes)
    return (tuple(islice(rows, n)) for n in n_rows)
