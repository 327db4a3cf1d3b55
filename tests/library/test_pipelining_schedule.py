"""torch.distributed.pipelining executes plans."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

from dynapipe_hpc import Cluster, FunctionCost, plan_iteration
from pipelining_schedule import schedule_rows

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("n_stages", [1, 2, 4])
def test_schedules_end_in_the_simulation_of_torch(n_stages: int) -> None:
    cost = FunctionCost(lambda n, m: 1 + n * m, stage_shares=(1 / n_stages,) * n_stages)
    lengths = list(range(8, 400, 9))
    plans = plan_iteration(lengths, cost, Cluster(n_stages=n_stages, device_memory_bytes=9))
    rows = schedule_rows(plans)
    actions = {rank: [_Action.from_str(each) for each in row] for rank, row in enumerate(rows)}
    _simulate_comms_compute(actions, lambda stage: stage, n_stages)
    n_microbatches = len(plans[0].microbatches)
    n_transfers = 4 * (n_stages - 1)
    assert sum(map(len, rows)) == n_microbatches * (2 * n_stages + n_transfers)


@pytest.mark.slow
def test_stages_have_the_gradients_of_the_unsplit_model(tmp_path: Path) -> None:
    paths = [str(ROOT), str(ROOT / "examples")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.library.pipelining_rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store")],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
