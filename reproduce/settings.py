"""Models, clusters and batches of the paper's figures 13 and 14."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from reproduce.cluster import GPUS_PER_NODE, cluster_table

N_GPUS = (4, 8, 16, 32)
LONGEST = (512, 1024, 2048, 4096, 8192)
TOKENS = (16_384, 32_768, 65_536, 131_072)
FIXED_LONGEST, FIXED_TOKENS = 2048, 65_536
N_LAYERS = {
    "gpt": {4: 16, 8: 32, 16: 64, 32: 128},
    "t5": {4: 24, 8: 48, 16: 96, 32: 192},
}
"""Layers, of a T5 half of them in the encoder."""
SIZES = {
    "gpt": {4: "3.35B", 8: "6.7B", 16: "13B", 32: "26B"},
    "t5": {4: "5.5B", 8: "11B", 16: "22B", 32: "44B"},
}
DEPTHS = (
    "Models have as many layers as in the paper; but a GPT on 16 and 32 GPUs has 64 and 128 of the "
    "layers that were measured, those of 6.7B, in place of wider ones (13B and 29B in the paper)."
)


class Setting(NamedTuple):
    """Setting that all methods share.

    Attributes:
        family: Model, gpt or t5.
        n_gpus: Number of GPUs, which sets the number of layers.
        longest: Longest sample in tokens.
        tokens: Tokens per global batch.
    """

    family: str
    n_gpus: int
    longest: int
    tokens: int

    @property
    def model(self) -> str:
        """Model and cluster, for people."""
        name = f"{self.family.upper()} {SIZES[self.family][self.n_gpus]}"
        return f"{name} on {self.n_gpus} GPUs"

    @property
    def is_over_lengths(self) -> bool:
        """Whether it is a point of figure 13."""
        return self.tokens == FIXED_TOKENS

    @property
    def is_over_tokens(self) -> bool:
        """Whether it is a point of figure 14."""
        return self.longest == FIXED_LONGEST


class Division(NamedTuple):
    """Replicas, stages and shards of a model."""

    replicas: int
    stages: int
    shards: int

    def __str__(self) -> str:
        """As replicas x stages x shards."""
        return "x".join(map(str, self))


def settings() -> Iterator[Setting]:
    """Points of both figures; each once."""
    for family, n_gpus in product(N_LAYERS, N_GPUS):
        points = [*((n, FIXED_TOKENS) for n in LONGEST), *((FIXED_LONGEST, t) for t in TOKENS)]
        for longest, tokens in dict.fromkeys(points):
            yield Setting(family, n_gpus, longest, tokens)


def divisions(n_gpus: int) -> Iterator[Division]:
    """Powers of two, shards inside a node, as in the paper's grid."""
    powers = [2**k for k in range(n_gpus.bit_length())]
    for replicas, stages in product(powers, repeat=2):
        shards, rest = divmod(n_gpus, replicas * stages)
        if not rest and 1 <= shards <= GPUS_PER_NODE:
            yield Division(replicas, stages, shards)


def tables_of(setting: Setting, division: Division, n_batches: int) -> dict[str, Any]:
    """Keys of the experiment; every stage has as many layers as the next."""
    n_layers = N_LAYERS[setting.family][setting.n_gpus]
    per_side = n_layers // 2 if setting.family == "t5" else n_layers
    n_stages = division.stages
    return {
        "data": {"max_tokens": setting.longest, "tokens_per_batch": setting.tokens},
        "cluster": cluster_table(*division),
        "model": {"n_layers": per_side, "layers_per_stage": [n_layers // n_stages] * n_stages},
        "training": {"iterations": n_batches},
    }
