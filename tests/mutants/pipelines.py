"""The tests of whole training, each with one cluster, for mistakes between parts."""

STEPS = "test_three_steps_of_the_optimizer_give_the_unsplit_weights"
PIPELINE = (f"tests/end_to_end/test_exactness.py::{STEPS}[2 stages x 2 replicas x 2 shards]",)
T5_PIPELINE = (f"tests/end_to_end/test_t5_exactness.py::{STEPS}[3 stages x 1 replicas x 2 shards]",)
