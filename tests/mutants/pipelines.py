"""The tests of whole training, each with one cluster, for mistakes between parts."""

EXACT = "tests/end_to_end/test_exactness.py"
STEPS = "test_three_steps_of_the_optimizer_give_the_unsplit_weights"
GRADIENTS = "test_loss_and_every_gradient_are_those_of_the_unsplit_model"
PIPELINE = (f"{EXACT}::{STEPS}[gpt, 2 stages x 2 replicas x 2 shards]",)
T5_PIPELINE = (f"{EXACT}::{STEPS}[t5, 3 stages x 1 replicas x 2 shards]",)
