import pytest
from tests.examples.example_runs import example_plans

from dynapipe_hpc.executor.describe_step import describe_step


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (1, "instruction 1 (Forward F0), micro-batch 0 of 3 x 16 tokens"),
        (2, "instruction 2 (StartSend a0>1), micro-batch 0 of 3 x 16 tokens, peer 1"),
        (4, "instruction 4 (WaitSend a0>!), micro-batch 0 of 3 x 16 tokens, peer 1"),
        (5, "instruction 5 (WaitReceive g0<!), micro-batch 0 of 3 x 16 tokens, peer 1"),
        (7, "instruction 7 (ReduceGradients reduce)"),
    ],
)
def test_a_step_is_described_by_instruction_micro_batch_and_peer(index: int, text: str) -> None:
    assert describe_step(example_plans(4)[0], index) == f"iteration 4, rank 0, {text}"
