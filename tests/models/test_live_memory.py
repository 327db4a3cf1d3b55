import gc

import pytest
import torch
from tests.examples.training_case import make_rank, padded, random_samples

from dynapipe_hpc.data.microbatch import PaddedRows, Recompute
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives


@pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)
def test_what_is_alive_after_a_forward_pass_is_what_was_counted_as_kept(mode: Recompute) -> None:
    samples = random_samples(1)
    rank = make_rank(Cluster(n_stages=4, device_memory_bytes=1), 1, SingleRankCollectives())
    microbatch = PaddedRows(padded(samples).sample_ids, 24, mode)
    received = torch.ones(15, 24, 16, dtype=torch.float64)
    rank.stage.load(0, microbatch)
    gc.collect()
    with LiveMemory() as memory:
        sent = rank.stage.forward(0, received)
    kept_bytes = rank.stage.finish_iteration().peak_bytes
    assert memory.live_bytes + received.nbytes == kept_bytes
    assert sent is not None
    with memory:
        rank.stage.backward(0, torch.ones_like(sent))
    del sent
    assert memory.live_bytes == 0
