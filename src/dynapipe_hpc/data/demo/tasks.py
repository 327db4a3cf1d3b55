"""Tasks of the demo corpus: each makes an input and a target of about a given length.

Every function takes a random generator and the length to aim at: bytes of input and target plus
one for the end of the sequence. It misses that length by about half a unit of what it repeats.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, pairwise
from random import Random
from typing import TypeVar

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
