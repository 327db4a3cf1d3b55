"""Layers that the paper's authors measured on an A100, read from profiles/ in the shared folder."""

from collections.abc import Mapping
from functools import cache
from typing import Literal

from tests.jobs.shared_folder import shared_folder

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.planner.cost.table.import_csv import import_csv
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable

Family = Literal["gpt", "t5"]
PROFILES: Mapping[Family, str] = {"gpt": "a100_40gb_gpt_6.7b", "t5": "a100_40gb_t5_11b"}
SHAPES: Mapping[Family, ModelShape] = {
    "gpt": GptShape(
        n_layers=16, hidden_size=4096, n_heads=32, ffn_size=16384, vocab_size=50304, max_tokens=8192
    ),
    "t5": T5Shape(
        n_layers=96,
        hidden_size=1024,
        n_heads=128,
        head_size=128,
        ffn_size=65536,
        vocab_size=32128,
        max_tokens=8192,
    ),
}


@cache
def a100_table(family: Family) -> ProfileTable:
    """Of a GPT 6.7B or a T5 11B; skips the test that asks if it is not there."""
    path = shared_folder("profiles") / f"{PROFILES[family]}.csv"
    return import_csv(path, path.with_stem(f"{path.stem}_parameters"), SHAPES[family])
