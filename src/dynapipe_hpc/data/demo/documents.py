"""Demo corpus tasks on long documents and long conversations."""

from collections.abc import Iterator
from itertools import count
from random import Random

from dynapipe_hpc.data.demo.tasks import Text, fill
from dynapipe_hpc.data.demo.words import ANIMALS, COLOURS, NAMES, PLACES, SOUNDS, THINGS

HEADLINE_EVERY = 6


def talk(rng: Random, n_bytes: int) -> Text:
    """A conversation in a shop; the target is what was bought."""
    customer, clerk = rng.sample(NAMES, 2)
    ending = f"{customer}: What do I have now?\n{clerk}:"

    def turn(item: str) -> str:
        return f"{customer}: I take a {item}.\n{clerk}: Yes, a {item}.\n"

    items = fill(
        n_bytes - len(ending) - len("You have: ."),
        (f"{rng.choice(COLOURS)} {rng.choice(THINGS)}" for _ in count()),
        cost=lambda item: len(turn(item)) + len(f"{item}, "),
    )
    return "".join(map(turn, items)) + ending, f"You have: {', '.join(items)}."


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
        (rng.choice(PLACES) for _ in count()),
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
    """Pairs of whether a sentence opens a paragraph, and the sentence."""
    for i in count():
        if i % HEADLINE_EVERY == 0:
            yield True, f"{rng.choice(NAMES)} went to the {rng.choice(PLACES)}."
        else:
            animal = rng.choice(ANIMALS)
            yield False, f"There a {rng.choice(COLOURS)} {animal} {SOUNDS[animal]}."
