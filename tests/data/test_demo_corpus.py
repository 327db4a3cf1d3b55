import hashlib
import json
from random import Random

import numpy as np
import pytest

from dynapipe_hpc.data.demo_corpus import (
    FAMILIES,
    SLACK_BYTES,
    SOUNDS,
    Family,
    demo_chats,
    demo_preferences,
    demo_samples,
)
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.records import PAIR_FIELDS, sample_of

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


def test_answers_are_right() -> None:
    n_asked = 0
    for chat in demo_chats(300, seed=1):
        texts = [m["content"] for m in chat["messages"] if m["role"] != "system"]
        for question, answer in zip(texts[::2], texts[1::2], strict=True):
            animal = next((a for a in SOUNDS if a in question and ":" not in question), None)
            n_asked += animal is not None
            assert animal is None or SOUNDS[animal] in answer
    assert n_asked > 100


def test_the_chosen_answer_is_that_of_the_conversation_and_the_other_is_not() -> None:
    for pair, chat in zip(demo_preferences(50, 3), demo_chats(50, 3), strict=True):
        assert [*pair["prompt"], *pair["chosen"]] == chat["messages"]
        [[chosen], [rejected]] = pair["chosen"], pair["rejected"]
        assert rejected["role"] == "assistant"
        assert rejected["content"] not in ("", chosen["content"])
        sample_of(dict(pair), RecordFormat.CHAT_PREFERENCES, PAIR_FIELDS)
