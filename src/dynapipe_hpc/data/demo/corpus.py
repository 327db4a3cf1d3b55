"""The demo corpus: instruction tasks, chats and preferences made from a seed."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypedDict

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.demo import tasks as demo_tasks
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.output_file import FileKind


class DemoTurn(TypedDict):
    """A turn of a conversation."""

    role: str
    content: str


class Chat(TypedDict):
    """A conversation."""

    messages: list[DemoTurn]
    task: str


CHAT = "chat"
"""Name of the task that all conversations are of."""
CHAT_SYSTEM = "Answer in a few words."
HAVE_SYSTEM = 0.5
MAX_CHAT_TURNS = 3
TURN_BYTES = 8, 96
"""Range of the length that a turn aims at."""
CHAT_TASKS = (
    demo_tasks.answer_question,
    demo_tasks.answer_question,
    demo_tasks.calculate,
    demo_tasks.sort_words,
    demo_tasks.count_words,
)
"""Subjects of the turns of a conversation; questions are twice as frequent."""


def demo_chats(n_samples: int, seed: int) -> Iterator[Chat]:
    """Makes conversations; each depends on its number and `seed` alone."""
    for i in range(n_samples):
        rng = Random(f"chat {seed}/{i}")  # noqa: S311 (not a secret)
        messages: list[DemoTurn] = []
        if rng.random() < HAVE_SYSTEM:
            messages.append({"role": "system", "content": CHAT_SYSTEM})
        for _ in range(rng.randint(1, MAX_CHAT_TURNS)):
            turn = rng.choice(CHAT_TASKS)(rng, rng.randint(*TURN_BYTES))
            for role, content in zip(("user", "assistant"), turn, strict=True):
                messages.append({"role": role, "content": content})
        yield {"messages": messages, "task": CHAT}


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
            _, wrong = rng.choice(CHAT_TASKS)(rng, rng.randint(*TURN_BYTES))
        rejected: DemoTurn = {"role": right["role"], "content": wrong}
        yield {"prompt": prompt, "chosen": [right], "rejected": [rejected], "task": PREFERENCE}


# Most samples are short and a few are very long, as in collections of instruction tasks: length
# in bytes is log-normal with (share, median, sigma).
LENGTHS = ((0.974, 105.0, 0.8), (0.026, 620.0, 1.0))
# A family misses the length it aims at by no more than this.
SLACK_BYTES = 64
MIN_MAX_BYTES = 256


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks of one kind.

    Attributes:
        name: Name of the task in the dataset.
        shortest: Least length that is asked of it, in bytes.
        longest: Length in bytes from which it is no longer used.
        make: Function that makes an input and a target of about a given length.
    """

    name: str
    shortest: float
    longest: float
    make: Callable[[Random, int], tuple[str, str]]


FAMILIES = (
    Family("question", 0, 64, demo_tasks.answer_question),
    Family("arithmetic", 0, 300, demo_tasks.calculate),
    Family("sorting", 32, 300, demo_tasks.sort_words),
    Family("reversing", 32, 300, demo_tasks.reverse_words),
    Family("counting", 32, 400, demo_tasks.count_words),
    Family("copying", 64, 400, demo_tasks.copy_with_edits),
    Family("entailment", 64, 400, demo_tasks.judge_entailment),
    Family("finding", 64, 1000, demo_tasks.find_place),
    Family("dialogue", 200, 1500, demo_tasks.talk),
    Family("extraction", 200, math.inf, demo_tasks.extract),
    Family("summary", 200, math.inf, demo_tasks.summarise),
)
NAMES = [family.name for family in FAMILIES]
MAX_LINE_BYTES = 1 << 20


def _is_demo_corpus(path: Path) -> bool:
    """Whether the first line looks like one of these samples."""
    try:
        with path.open("rb") as file:
            first = json.loads(file.readline(MAX_LINE_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    match first:
        case {"inputs": _, "targets": _, "task": name, **others}:
            return not others and name in NAMES
        case {"messages": _, "task": name, **others}:
            return not others and name == CHAT
        case {"prompt": _, "chosen": _, "rejected": _, "task": name, **others}:
            return not others and name == PREFERENCE
    return False


DEMO_CORPUS = FileKind("a demo corpus", _is_demo_corpus)


def demo_samples(n_samples: int, seed: int, max_bytes: int) -> Iterator[dict[str, str]]:
    """Makes samples with `inputs`, `targets` and `task`.

    Sample i depends on i, `seed` and `max_bytes` alone. Input and target have, with the end of
    the sequence counted as one, at most `max_bytes` bytes.
    """
    for i in range(n_samples):
        rng = Random(f"{seed}/{i}")  # noqa: S311 (not a secret)
        n_bytes = min(_draw_length(rng), max_bytes - SLACK_BYTES)
        family = rng.choice([f for f in FAMILIES if f.shortest <= n_bytes < f.longest])
        inputs, targets = family.make(rng, n_bytes)
        yield {"inputs": inputs, "targets": targets, "task": family.name}


def write_demo_corpus(
    path: Path,
    n_samples: int,
    seed: int,
    max_bytes: int,
    *,
    chat: bool = False,
    preferences: bool = False,
) -> None:
    """Writes samples as JSONL; the file appears when it is complete.

    Args:
        path: The file, replaced if it exists.
        n_samples: Number of samples.
        seed: Seed of the corpus; each seed gives another one.
        max_bytes: Longest sample, in bytes of input, target and end of sequence.
        chat: Whether to write conversations instead of tasks; all of these are short.
        preferences: Whether to write conversations with two last answers.
    """
    if n_samples < 1:
        raise InputError(f"--samples {n_samples}: must be at least 1")
    if max_bytes < MIN_MAX_BYTES:
        raise InputError(f"--max-bytes {max_bytes}: must be at least {MIN_MAX_BYTES}")
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        samples: Iterable[object] = demo_samples(n_samples, seed, max_bytes)
        if chat:
            samples = demo_chats(n_samples, seed)
        if preferences:
            samples = demo_preferences(n_samples, seed)
        for sample in samples:
            file.write(json.dumps(sample) + "\n")


def _draw_length(rng: Random) -> int:
    weights = [share for share, _, _ in LENGTHS]
    [(_, median, sigma)] = rng.choices(LENGTHS, weights)
    return round(rng.lognormvariate(math.log(median), sigma))
