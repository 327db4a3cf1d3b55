"""Dynamic batches for reinforcement learning: sequences per rank and micro-batch, balanced.

Frameworks such as verl (`use_dynamic_bsz`) and NeMo RL (dynamic batching, sequence packing) train
on rollouts whose lengths differ widely. They cut the sequences of a step into micro-batches of at
most so many tokens, packed without padding, and hand them to data-parallel ranks:

    for indices in balanced_batches(lengths, n_ranks, most_tokens)[rank]:
        update(rollouts[indices])

All ranks take the same number of micro-batches where `equal_counts` is set, as sharded weights
(FSDP, ZeRO-3) need, whose ranks gather them together in every pass.
"""

from collections.abc import Sequence

from dynapipe_hpc import Cluster, DynamicConfig, FunctionCost, InputError, plan_iteration

PACKED = DynamicConfig(layouts=("packed",))


def transformer_cost(hidden_size: int, n_layers: int, launch_tokens: float = 0) -> FunctionCost:
    """Costs in linear work per token: maps of 12 x width^2 numbers, and attention.

    Args:
        hidden_size: Width of the model.
        n_layers: Number of its layers, by which launches count.
        launch_tokens: Tokens whose linear work takes as long as starting the kernels of a layer.
    """
    return FunctionCost(
        lambda n, m: max(n_layers * (launch_tokens + n * m * (1 + m / (6 * hidden_size))), 1e-9),
        lambda n, m: n * m,
    )


def balanced_batches(
    lengths: Sequence[int],
    n_ranks: int,
    most_tokens: int,
    cost: FunctionCost,
    *,
    equal_counts: bool = True,
) -> list[list[list[int]]]:
    """Indices of sequences by rank and micro-batch, such that the slowest rank ends soon.

    Args:
        lengths: Tokens of every sequence of a step, at least one per rank.
        n_ranks: Number of data-parallel ranks.
        most_tokens: Most tokens of a micro-batch; the planner fills rows up to a multiple of 8.
        cost: Time of a micro-batch; its memory is tokens.
        equal_counts: Whether all ranks get the same number of micro-batches, by cutting some. A
            rank with fewer sequences than that gets empty micro-batches at the end.

    Raises:
        InputError: There are fewer sequences than ranks, or one is longer than `most_tokens`.
    """
    if len(lengths) < n_ranks:
        raise InputError(
            f"lengths has {len(lengths)} sequences for {n_ranks} ranks, each of which needs one"
        )
    cluster = Cluster(n_replicas=n_ranks, device_memory_bytes=most_tokens)
    plans = plan_iteration(lengths, cost, cluster, batch=PACKED)
    ranks = [[list(each.sample_ids) for each in plan.microbatches] for plan in plans]
    if equal_counts:
        n_microbatches = max(map(len, ranks))
        for rank in ranks:
            cut(rank, n_microbatches, lengths)
    return ranks


def cut(rank: list[list[int]], n_microbatches: int, lengths: Sequence[int]) -> None:
    """Halves the micro-batches that have most tokens until there are as many as wanted."""
    while len(rank) < n_microbatches:
        several = [each for each in rank if len(each) > 1]
        if not several:
            rank.append([])
            continue
        largest = max(several, key=lambda each: sum(lengths[i] for i in each))
        by_length = sorted(largest, key=lambda i: -lengths[i])
        halves: tuple[list[int], list[int]] = ([], [])
        for i in by_length:
            min(halves, key=lambda half: sum(lengths[j] for j in half)).append(i)
        place = rank.index(largest)
        rank[place : place + 1] = halves
