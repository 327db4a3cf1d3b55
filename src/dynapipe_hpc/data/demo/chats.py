"""Conversations of the demo corpus, lists of messages as chat models are tuned on."""

from collections.abc import Iterator
from random import Random
from typing import TypedDict

from dynapipe_hpc.data.demo import tasks


class Message(TypedDict):
    """A turn of a conversation."""

    role: str
    content: str


class Chat(TypedDict):
    """A conversation."""

    messages: list[Message]
    task: str


CHAT = "chat"
"""Name of the task that all conversations are of."""
SYSTEM = "Answer in a few words."
HAVE_SYSTEM = 0.5
MAX_TURNS = 3
MIN_BYTES, MAX_BYTES = 8, 96
"""Range of the length that a turn aims at."""
TASKS = (
    tasks.answer_question,
    tasks.answer_question,
    tasks.calculate,
    tasks.sort_words,
    tasks.count_words,
)
"""Subjects of the turns of a conversation; questions are twice as frequent."""


def demo_chats(n_samples: int, seed: int) -> Iterator[Chat]:
    """Makes conversations; each depends on its number and `seed` alone."""
    for i in range(n_samples):
        rng = Random(f"chat {seed}/{i}")  # noqa: S311 (not a secret)
        messages: list[Message] = []
        if rng.random() < HAVE_SYSTEM:
            messages.append({"role": "system", "content": SYSTEM})
        for _ in range(rng.randint(1, MAX_TURNS)):
            turn = rng.choice(TASKS)(rng, rng.randint(MIN_BYTES, MAX_BYTES))
            for role, content in zip(("user", "assistant"), turn, strict=True):
                messages.append({"role": role, "content": content})
        yield {"messages": messages, "task": CHAT}
