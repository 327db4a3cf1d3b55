"""Short tasks of the demo corpus: each makes an input and a target of about a given length.

Every function takes a random generator and the length to aim at: bytes of input and target plus
one for the end of the sequence. It misses that length by about half a unit of what it repeats.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import TypeVar

from dynapipe_hpc.data.demo.words import ANIMALS, COLOURS, NAMES, SOUNDS, THINGS

T = TypeVar("T")
Text = tuple[str, str]


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


def reverse_words(rng: Random, n_bytes: int) -> Text:
    """Words to write in reverse order."""
    words = fill(n_bytes - len("Turn round: "), draws(rng, COLOURS), lambda w: 2 * len(w) + 2)
    return f"Turn round: {' '.join(words)}", " ".join(reversed(words))


def copy_with_edits(rng: Random, n_bytes: int) -> Text:
    """Words to copy, with one word replaced wherever it occurs."""
    old, new = rng.sample(THINGS, 2)
    prompt = f"Copy with {new} for {old}: "
    words = fill(n_bytes - len(prompt), draws(rng, (old, *THINGS[:6])), lambda w: 2 * len(w) + 2)
    return prompt + " ".join(words), " ".join(new if word == old else word for word in words)


def count_words(rng: Random, n_bytes: int) -> Text:
    """Words to count: how often one of them occurs."""
    chosen = rng.sample(ANIMALS, 3)
    prompt = f"Count {chosen[0]}: "
    words = fill(n_bytes - len(prompt) - 2, draws(rng, chosen), lambda w: len(w) + 1)
    return prompt + " ".join(words), str(words.count(chosen[0]))


def judge_entailment(rng: Random, n_bytes: int) -> Text:
    """Statements, and whether they imply another statement, deny it or leave it open."""
    owners = rng.sample(NAMES, len(NAMES))
    asked_colour, asked_thing = rng.choice(COLOURS), rng.choice(THINGS)
    question = f"So {owners[0]} has a {asked_colour} {asked_thing}?"
    statements = fill(
        n_bytes - len(question) - len("unknown"),
        (f"{name} has a {rng.choice(COLOURS)} {rng.choice(THINGS)}." for name in owners[1:]),
        cost=lambda statement: len(statement) + 1,
    )
    answer = rng.choice(("yes", "no", "unknown"))
    if answer != "unknown":
        others = [colour for colour in COLOURS if colour != asked_colour]
        colour = asked_colour if answer == "yes" else rng.choice(others)
        verb = "has" if answer == "yes" else "has only"
        fact = f"{owners[0]} {verb} a {colour} {asked_thing}."
        statements[rng.randrange(len(statements))] = fact
    return f"{' '.join(statements)} {question}", answer
