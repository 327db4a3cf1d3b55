"""One stage under torch.distributed.pipelining, which compares itself with the unsplit model.

python -m tests.library.pipelining_rank RANK N_STAGES FILE_OF_THE_STORE
"""

import sys
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

from dynapipe_hpc import Cluster, FunctionCost, plan_iteration
from pipelining_schedule import PlannedStage, schedule_rows, step

LENGTHS = [3, 30, 9, 17, 12, 5, 26, 8, 14, 11]
WIDTH, LIMIT = 6, 64


def layer(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double()


def sum_of_squares(found: Tensor, wanted: Tensor) -> Tensor:
    return ((found - wanted) ** 2).sum()


def main(rank: int, n_stages: int, store: str) -> None:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=n_stages,
        timeout=timedelta(seconds=30),
    )
    shares = (1 / n_stages,) * n_stages
    cost = FunctionCost(lambda n, m: 1 + n * m, lambda n, m: n * m, shares, hidden_size=WIDTH)
    plans = plan_iteration(LENGTHS, cost, Cluster(n_stages=n_stages, device_memory_bytes=LIMIT))
    microbatches = plans[rank].microbatches
    assert len({(each.n_rows, each.row_tokens) for each in microbatches}) > 2
    random = torch.Generator().manual_seed(5)
    shapes = [(each.n_rows, each.row_tokens, WIDTH) for each in microbatches]
    inputs, targets = (
        [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
        for _ in range(2)
    )
    module = layer(rank)
    stage = PlannedStage(module, plans[rank], n_stages, torch.device("cpu"))
    losses = step(stage, schedule_rows(plans), inputs, targets, sum_of_squares)
    whole = nn.Sequential(*(layer(number) for number in range(n_stages)))
    expected = [sum_of_squares(whole(x), y) for x, y in zip(inputs, targets, strict=True)]
    torch.stack(expected).sum().backward()  # type: ignore[no-untyped-call]
    if rank == n_stages - 1:
        torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    for found, wanted in zip(module.parameters(), whole[rank].parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-12, atol=1e-14)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
