"""The demo corpus: instruction tasks, chats and preferences made from a seed."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

from dynapipe_hpc.data.atomic_write import atomic_write

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jun",
    "Kim", "Lena", "Max", "Nora", "Otto", "Pia", "Rosa", "Sam", "Tess", "Uli",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "white", "black", "brown", "pink", "grey")
THINGS = (
    "apple", "bag", "ball", "boat", "book", "box", "chair", "clock", "coat", "cup",
    "door", "drum", "fork", "glove", "hat", "key", "lamp", "map", "pen", "shoe",
)  # fmt: skip
PLACES = ("attic", "barn", "cellar", "garden", "hall", "kitchen", "office", "shop", "tower", "yard")
SOUNDS = {
    "bear": "growls", "cat": "purrs", "cow": "moos", "dog": "barks", "fox": "yelps",
    "goat": "bleats", "hen": "clucks", "horse": "neighs", "owl": "hoots", "pig": "grunts",
}  # fmt: skip
ANIMALS = tuple(SOUNDS)

T = TypeVar("T")
Text = tuple[str, str]
"""Input and target that a task makes. Their bytes, plus one for the end of the sequence, differ
from the requested length by about half a unit of what the task repeats."""


def draws(rng: Random, choices: Sequence[str]) -> Iterator[str]:
    """Endless random choices."""
    while True:
        yield rng.choice(choices)


def fill(n_bytes: int, units: Iterable[T], cost: Callable[[T], int]) -> list[T]:
    """Takes units, at least one, while each brings the sum of their costs closer to `n_bytes`."""
    taken: list[T] = []
    for unit in units:
        n_bytes -= cost(unit)
        if taken and n_bytes < -cost(unit) / 2:
            break
        taken.append(unit)
    return taken


def answer_question(rng: Random, n_bytes: int) -> Text:
    """The sound of an animal, asked in more or fewer words."""
    animal = rng.choice(ANIMALS)
    sound = SOUNDS[animal]
    ways = [
        (f"{animal}?", sound),
        (f"A {animal} does what?", sound),
        (f"What does the {animal} do?", f"It {sound}."),
        (f"Which sound does a {animal} make?", f"A {animal} {sound}."),
        (f"Please tell me which sound a {animal} makes.", f"The {animal} {sound}."),
    ]
    return min(ways, key=lambda way: abs(len(way[0]) + len(way[1]) + 1 - n_bytes))


def calculate(rng: Random, n_bytes: int) -> Text:
    """A sum of small numbers, worked out step by step."""
    start = rng.randrange(10)
    terms = fill(n_bytes - len("0=?"), draws(rng, "123456789"), cost=lambda _: len("+1 00+1=00"))
    totals = [start]
    for term in terms:
        totals.append(totals[-1] + int(term))
    steps = [f"{a}+{t}={b}" for (a, b), t in zip(pairwise(totals), terms, strict=True)]
    return f"{start}+{'+'.join(terms)}=?", " ".join(steps)


def sort_words(rng: Random, n_bytes: int) -> Text:
    """Words to sort alphabetically."""
    words = fill(n_bytes - len("Sort: "), draws(rng, THINGS + ANIMALS), lambda w: 2 * len(w) + 2)
    return f"Sort: {' '.join(words)}", " ".join(sorted(words))


def count_words(rng: Random, n_bytes: int) -> Text:
    """Words to count: how often one of them occurs."""
    chosen = rng.sample(ANIMALS, 3)
    prompt = f"Count {chosen[0]}: "
    words = fill(n_bytes - len(prompt) - 2, draws(rng, chosen), lambda w: len(w) + 1)
    return prompt + " ".join(words), str(words.count(chosen[0]))


HEADLINE_EVERY = 6


def extract(rng: Random, n_bytes: int) -> Text:
    """A long list of who keeps what where, and a question about one entry."""
    entries = fill(
        n_bytes - len("What is in room 100?") - len("A brown thing of Ada."),
        _entries(rng),
        cost=lambda entry: len(f"Room {entry[0]}: {entry[1]}. "),
    )
    room, content = rng.choice(entries)
    document = " ".join(f"Room {number}: {thing}." for number, thing in entries)
    return f"{document} What is in room {room}?", f"A {content}."


def _entries(rng: Random) -> Iterator[tuple[int, str]]:
    for room in count(rng.randrange(100, 900)):
        yield room, f"{rng.choice(COLOURS)} {rng.choice(THINGS)} of {rng.choice(NAMES)}"


def find_place(rng: Random, n_bytes: int) -> Text:
    """A story of someone who walks about; the target is the place where it ends."""
    name = rng.choice(NAMES)
    question = f"Where is {name}?"
    walk = fill(
        n_bytes - len(question) - len("In the garden."),
        draws(rng, PLACES),
        cost=lambda place: len(f"{name} walks to the {place}. "),
    )
    story = " ".join(f"{name} walks to the {place}." for place in walk)
    return f"{story} {question}", f"In the {walk[-1]}."


def summarise(rng: Random, n_bytes: int) -> Text:
    """A long report; its summary keeps the first sentence of each paragraph."""
    sentences = fill(
        n_bytes - len("Summary:"),
        _report(rng),
        cost=lambda sentence: (2 if sentence[0] else 1) * (len(sentence[1]) + 1),
    )
    document = "".join(f"\n{text}" if opens else f" {text}" for opens, text in sentences)
    summary = " ".join(text for opens, text in sentences if opens)
    return f"{document.strip()}\nSummary:", summary


def _report(rng: Random) -> Iterator[tuple[bool, str]]:
    for i in count():
        if i % HEADLINE_EVERY == 0:
            yield True, f"{rng.choice(NAMES)} went to the {rng.choice(PLACES)}."
        else:
            animal = rng.choice(ANIMALS)
            yield False, f"There a {rng.choice(COLOURS)} {animal} {SOUNDS[animal]}."


CHAT, PREFERENCE = "chat", "preference"
"""Task names of all conversations, and of all preference pairs."""
CHAT_SYSTEM = "Answer in a few words."
MAX_CHAT_TURNS = 3
TURN_BYTES = 8, 96
"""Range of the length, in bytes, that a turn aims at."""
CHAT_TASKS = (answer_question, answer_question, calculate, sort_words, count_words)
"""Subjects of the turns of a conversation; questions are twice as frequent."""


def demo_chats(n_samples: int, seed: int) -> Iterator[dict[str, Any]]:
    """Makes conversations; each depends on its number and `seed` alone."""
    for i in range(n_samples):
        rng = Random(f"chat {seed}/{i}")  # noqa: S311 (not a secret)
        has_system = rng.random() < 1 / 2
        messages = [{"role": "system", "content": CHAT_SYSTEM}] if has_system else []
        for _ in range(rng.randint(1, MAX_CHAT_TURNS)):
            question, answer = rng.choice(CHAT_TASKS)(rng, rng.randint(*TURN_BYTES))
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        yield {"messages": messages, "task": CHAT}


def demo_preferences(n_samples: int, seed: int) -> Iterator[dict[str, Any]]:
    """Makes pairs; each depends on its number and `seed` alone.

    The prompt and the right answer are a conversation; the wrong answer answers another question.
    """
    for i, chat in enumerate(demo_chats(n_samples, seed)):
        *prompt, right = chat["messages"]
        rng = Random(f"preference {seed}/{i}")  # noqa: S311 (not a secret)
        wrong = right["content"]
        while wrong == right["content"]:
            _, wrong = rng.choice(CHAT_TASKS)(rng, rng.randint(*TURN_BYTES))
        rejected = {"role": right["role"], "content": wrong}
        yield {"prompt": prompt, "chosen": [right], "rejected": [rejected], "task": PREFERENCE}


# Most samples are short and a few are very long, as in collections of instruction tasks: length
# in bytes is log-normal with (share, median, sigma).
LENGTHS = ((0.974, 105.0, 0.8), (0.026, 620.0, 1.0))
# A family misses the length it aims at by no more than this.
SLACK_BYTES = 64


class Family(NamedTuple):
    """Tasks of one kind."""

    name: str
    shortest: float  # least length asked of a sample, in bytes
    longest: float  # length in bytes from which the family is no longer used
    make: Callable[[Random, int], Text]


FAMILIES = (
    Family("question", 0, 64, answer_question),
    Family("arithmetic", 0, 300, calculate),
    Family("sorting", 32, 300, sort_words),
    Family("counting", 32, 400, count_words),
    Family("finding", 64, 1000, find_place),
    Family("extraction", 200, math.inf, extract),
    Family("summary", 200, math.inf, summarise),
)


def demo_samples(n_samples: int, seed: int, max_bytes: int) -> Iterator[dict[str, Any]]:
    """Makes samples with `inputs`, `targets` and `task`.

    Sample i depends on i, `seed` and `max_bytes` alone. Input and target
    together, with one byte for the end of the sequence, have at most `max_bytes` bytes.
    """
    for i in range(n_samples):
        rng = Random(f"{seed}/{i}")  # noqa: S311 (not a secret)
        [(_, median, sigma)] = rng.choices(LENGTHS, [share for share, _, _ in LENGTHS])
        drawn = round(rng.lognormvariate(math.log(median), sigma))
        n_bytes = min(drawn, max_bytes - SLACK_BYTES)
        family = rng.choice([f for f in FAMILIES if f.shortest <= n_bytes < f.longest])
        inputs, targets = family.make(rng, n_bytes)
        yield {"inputs": inputs, "targets": targets, "task": family.name}


def write_demo_corpus(path: Path, samples: Iterable[object]) -> None:
    """Writes samples as JSONL; the file appears, or is replaced, when it is complete."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps(sample) + "\n")
