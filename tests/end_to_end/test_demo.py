"""The configurations of `make demo`."""

from pathlib import Path

from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.experiment.load import load_config

DEMO = Path(__file__).parents[2] / "configs" / "demo"
MAX_ATTENTION = 0.2


def test_attention_takes_no_larger_share_than_in_large_models() -> None:
    config = load_config(DEMO / "base.toml")
    work = config.model.parts()[LAYER].work
    pairs = config.data.max_tokens / 2  # of a token of the longest row with those before it
    assert pairs * work.attention.per_pair / work.linear.per_own <= MAX_ATTENTION
