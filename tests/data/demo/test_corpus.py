"""The demo corpus."""

import hashlib
import json
from random import Random

import numpy as np
import pytest

from dynapipe_hpc.data.demo.corpus import FAMILIES, SLACK_BYTES, Family, demo_samples

# Enough for the last percentile to be within a third, three standard errors.
N_SAMPLES = 40_000


def n_bytes(sample: dict[str, str]) -> int:
    return len(sample["inputs"].encode()) + len(sample["targets"].encode()) + 1


@pytest.fixture(scope="module")
def samples() -> list[dict[str, str]]:
    return list(demo_samples(N_SAMPLES, seed=7, max_bytes=8192))


@pytest.mark.parametrize(
    ("percent", "known", "within"),
    [(50, 107, 0.08), (90, 318, 0.08), (99, 1035, 0.12), (99.9, 3621, 0.33)],
)
def test_lengths_are_those_of_instruction_collections(
    samples: list[dict[str, str]], percent: float, known: int, within: float
) -> None:
    assert np.percentile([n_bytes(s) for s in samples], percent) == pytest.approx(known, rel=within)


def test_the_corpus_stays_what_it_was() -> None:
    texts = "".join(json.dumps(sample) for sample in demo_samples(200, 0, 2048))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "97a3b3e74ea00ea9"


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_a_family_aims_well(family: Family) -> None:
    rng = Random(1)  # noqa: S311 (not a secret)
    shortest, longest = max(40, int(family.shortest)), int(min(family.longest, 3000))
    lengths = [rng.randrange(shortest, longest) for _ in range(500)]
    missed = [len(i) + len(t) + 1 - n for n in lengths for i, t in [family.make(rng, n)]]
    assert abs(np.mean(missed)) < 6
    assert max(missed) < SLACK_BYTES
