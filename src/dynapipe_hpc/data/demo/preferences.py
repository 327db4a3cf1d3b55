"""Preference pairs of the demo corpus: conversations with a right and a wrong last answer."""

from collections.abc import Iterator
from random import Random
from typing import TypedDict

from dynapipe_hpc.data.demo.chats import MAX_BYTES, MIN_BYTES, TASKS, DemoTurn, demo_chats

PREFERENCE = "preference"
"""Name of the task that all pairs are of."""


class Preference(TypedDict):
    """Messages of a prompt, and two answers, of one message each."""

    prompt: list[DemoTurn]
    chosen: list[DemoTurn]
    rejected: list[DemoTurn]
    task: str


def demo_preferences(n_samples: int, seed: int) -> Iterator[Preference]:
    """Makes pairs; each depends on its number and `seed` alone.

    The prompt and the right answer are a conversation; the wrong answer is one to another question.
    """
    for i, chat in enumerate(demo_chats(n_samples, seed)):
        *prompt, right = chat["messages"]
        rng = Random(f"preference {seed}/{i}")  # noqa: S311 (not a secret)
        wrong = right["content"]
        while wrong == right["content"]:
            _, wrong = rng.choice(TASKS)(rng, rng.randint(MIN_BYTES, MAX_BYTES))
        rejected: DemoTurn = {"role": right["role"], "content": wrong}
        yield {"prompt": prompt, "chosen": [right], "rejected": [rejected], "task": PREFERENCE}
