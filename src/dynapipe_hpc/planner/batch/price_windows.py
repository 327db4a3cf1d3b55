"""Looks up what every window of neighbouring samples costs."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import product, starmap

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import (
    MAX_FILL_TOKENS,
    ExecutionMode,
    Layout,
    MicroBatch,
    PaddedRows,
)
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, misfit_error
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.planner.batch.row_length import (
    ROW_MULTIPLE,
    RowLengths,
    document_lengths,
    padded,
    preferences_of,
)
from dynapipe_hpc.planner.batch.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, IntArray, Shapes, StageCosts

# Neighbouring samples of large batches stay together, in bundles:
# docs/decisions/0028-large-batches-are-planned-in-bundles.md.
FEWEST_SAMPLES = 2048
"""Least number of samples of a batch that is bundled; smaller batches take little time to plan."""
FEWEST_PER_REPLICA = 512
"""Least number of samples per replica in such a batch."""
PACKED_SHARE = 32
"""Divisor of both limits if samples may be packed: many padded windows are alike, but all packed
windows have costs of their own."""
BUNDLES_PER_REPLICA = 256
"""Least number of bundles for each replica, if all bundles had the same number of tokens; half of
it if samples may be packed."""
BUNDLES_PER_LONGEST = 2
"""Least number of bundles that together have as many tokens as the longest sample."""
MANY_BUNDLES = 384
"""Number of bundles from which on `BUNDLES_PER_LONGEST` is ignored: all samples may be short."""


def bundles(
    lengths: RowLengths, n_replicas: int, layouts: Collection[Layout] = (Layout.PADDED,)
) -> IntArray:
    """Beginnings of bundles of neighbouring samples, and the end of the last bundle.

    A bundle has 1, 2, 4, ... samples, as many as two limits on their tokens together allow: a small
    fraction of a replica's tokens; and half of the longest sample's tokens or a 384th of all
    tokens, whichever is larger. Tokens include padding unless all samples are packed. So a bundle
    takes little memory and little time, and every replica has many.

    `lengths`: Row lengths of the samples in their order. Returns indices of samples, ascending from
    0 to the number of samples, shape (n_bundles + 1,).
    """
    n_samples, may_pack = len(lengths.row_tokens), Layout.PACKED in layouts
    fewest = max(FEWEST_SAMPLES, FEWEST_PER_REPLICA * n_replicas)
    if n_samples < (fewest // PACKED_SHARE if may_pack else fewest):
        return np.arange(n_samples + 1)
    tokens = lengths.row_tokens + lengths.target_tokens
    total = tokens.sum()
    most = max(tokens.max() / BUNDLES_PER_LONGEST, total / MANY_BUNDLES)
    most = min(most, total / BUNDLES_PER_REPLICA / n_replicas * (1 + may_pack))
    sizes = _sizes(lengths, float(most), is_padded=Layout.PADDED in layouts)
    return np.fromiter(_begins(sizes.tolist()), np.int64)


def _sizes(lengths: RowLengths, most_tokens: float, *, is_padded: bool) -> IntArray:
    sizes = np.ones_like(lengths.row_tokens)
    row_tokens, target_tokens = lengths
    size, join = 1, np.maximum if is_padded else np.add
    while len(row_tokens) > size:
        row_tokens = join(row_tokens[:-size], row_tokens[size:])
        target_tokens = join(target_tokens[:-size], target_tokens[size:])
        size *= 2
        tokens = (row_tokens + target_tokens) * (size if is_padded else 1)
        sizes[: len(row_tokens)][tokens <= most_tokens] = size
    return sizes


def _begins(sizes: Sequence[int]) -> Iterator[int]:
    begin = 0
    while begin < len(sizes):
        yield begin
        begin += sizes[begin]
    yield begin


PADDED_ONLY = (Layout.PADDED,)
SMALL_WINDOW_TOKENS = 8192
"""Windows of at most this number of tokens are always looked up. Larger ones of several bundles
have at most the tokens that a replica has per stage, or those of two longest samples: others leave
stages idle, unless they take hardly any time."""


def price_windows(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    layouts: Sequence[Layout] = PADDED_ONLY,
    *,
    token_multiple: int = ROW_MULTIPLE,
    may_misfit: bool = False,
    may_bundle: bool = False,
) -> WindowTable:
    """Costs of every micro-batch of neighbouring samples, looked up once for all uses.

    `samples`: Samples in the order to be cut, at least one. `token_multiple`: Multiple of 8, to
    multiples of which rows are padded. `may_misfit`: Whether there may be samples that cannot run
    uncut. `may_bundle`: Whether neighbours of large batches may stay together, see `bundles`; they
    never do where memory is too scarce for a bundle although its samples could run. Raises
    `DoesNotFitError`: A sample alone needs more memory than a stage has. Raises `NotMeasuredError`:
    The cost model does not know what a sample alone costs.
    """
    lengths = document_lengths(samples, cost.is_encoder_decoder)
    price = partial(
        _priced, samples, lengths, cost, cluster, layouts=layouts, token_multiple=token_multiple
    )
    begin = np.arange(len(samples) + 1)
    if may_bundle:
        multiple = min(token_multiple, MAX_FILL_TOKENS)
        rows = RowLengths(*(padded(side, multiple) for side in lengths))
        begin = bundles(rows, cluster.n_replicas, layouts)
        if len(begin) <= len(samples):
            table = price(begin=begin)
            if _every_bundle_runs(table):
                return table
            begin = np.arange(len(samples) + 1)
    table = price(begin=begin)
    if not may_misfit:
        check_samples(table, cost, cluster, token_multiple, may_slice=False)
    return table


def _every_bundle_runs(table: WindowTable) -> bool:
    runs = table.runs_alone[:, table.row_of_sample]
    may_all_run = runs[:, np.diff(table.begin) == 1].all(axis=1)
    return bool(runs.any(axis=0).all() and runs[may_all_run].all())


def _priced(
    samples: Sequence[Sample],
    lengths: RowLengths,
    cost: CostModel,
    cluster: Cluster,
    *,
    begin: IntArray,
    layouts: Sequence[Layout],
    token_multiple: int,
) -> WindowTable:
    inputs, targets = lengths
    n_documents, pairs = preferences_of(samples) or (np.ones_like(inputs), inputs**2)
    modes, models = cost.recompute_modes, [cost.of_layout(layout) for layout in layouts]

    def price(layout: int, mode: int, *columns: FloatArray) -> None:
        *sizes, out = columns
        models[layout].stage_costs(Shapes(*sizes), modes[mode], out)

    tokens = np.add(*(padded(side, min(token_multiple, MAX_FILL_TOKENS)) for side in lengths))
    share = tokens.sum() / cluster.n_stages / cluster.n_replicas
    known = cost.known_rows
    costs, cells, spans, row_of_bundle, *sizes = _kernels.price_windows(
        inputs,
        targets,
        n_documents,
        pairs,
        begin,
        [layout is Layout.PACKED for layout in layouts],
        float(max(share, 2 * tokens.max(), SMALL_WINDOW_TOKENS)),
        token_multiple,
        (known.most, known.least_tokens, known.longest_tokens),
        activation_room_bytes(cost, cluster),
        cost.kind_of_stage,
        len(modes),
        price,
    )
    return WindowTable(
        samples,
        begin,
        tuple(starmap(ExecutionMode, product(layouts, modes))),
        row_of_bundle,
        cells,
        spans,
        Shapes(*sizes),
        StageCosts(costs, cost.kind_of_stage),
    )


def check_samples(
    table: WindowTable, cost: CostModel, cluster: Cluster, token_multiple: int, *, may_slice: bool
) -> None:
    """Raises an error for the first sample that cannot run, even as slices where allowed."""
    runs = table.runs_alone[:, table.row_of_sample].any(axis=0)
    misfits = np.flatnonzero(~runs)
    if misfits.size:
        sample = table.samples[misfits[0]]
        mode = table.modes[-1]  # the mode that keeps least
        raise misfit_error(
            f"sample {sample.sample_id} ({sample.describe()}) on its own",
            microbatch_costs([_alone(sample, mode, cost.is_encoder_decoder, token_multiple)], cost),
            cost,
            cluster,
            way_out=_remedy(cost, has_tried_slices=may_slice and mode.layout is Layout.PACKED),
        )


def _alone(
    sample: Sample, mode: ExecutionMode, is_encoder_decoder: bool, token_multiple: int
) -> MicroBatch:
    lengths = document_lengths([sample], is_encoder_decoder)
    row_tokens, target_tokens = (int(padded(side, token_multiple)[0]) for side in lengths)
    if mode.layout is Layout.PACKED:
        return packed_microbatch(
            [sample],
            mode.recompute,
            is_encoder_decoder,
            row_tokens=row_tokens,
            target_tokens=target_tokens,
        )
    return PaddedRows((sample.sample_id,), row_tokens, mode.recompute, target_tokens)


def _remedy(cost: CostModel, *, has_tried_slices: bool) -> str:
    if has_tried_slices or not cost.slice_memory.kept.any():
        return "cut long samples with data.max_tokens"
    return (
        'let long samples run as slices (planner.batch: layouts = ["packed"], slices = "auto"), '
        "or cut them with data.max_tokens"
    )
