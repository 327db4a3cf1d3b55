"""Parts of torch that take seconds to import are not imported by a rank that trains."""

from pathlib import Path

from tests.jobs.command_line import run_python

PROGRAM = """\
import json, sys
from tests.examples.training_case import SHAPE, T5_SHAPE, make_rank, padded, random_samples
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives

samples = random_samples(1)
for shape in (SHAPE, T5_SHAPE):
    rank = make_rank(Cluster(device_memory_bytes=1), 0, SingleRankCollectives(), shape=shape)
    rank.tokens.start_iteration(samples)
    for split_backward in (False, True):
        rank.stage.load(0, padded(samples, shape))
        rank.stage.forward(0, None, split_backward=split_backward)
        rank.stage.backward(0, None)
    rank.stage.backward_weight(0)
    rank.stage.step_optimizer()
    assert rank.stage.finish_iteration().loss > 0
slow = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")
print(json.dumps([name for name in slow if name in sys.modules]))
"""


def test_a_rank_trains_without_torchs_compiler() -> None:
    ended = run_python(PROGRAM, folder=Path(__file__).parents[2])
    assert ended.stdout == "[]\n", ended.stderr
