"""What the paper's ingredients gain one by one: ways to form micro-batches, and schedules."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from dynapipe_hpc.experiment.study.describe_simulation import tokens_per_s
from dynapipe_hpc.report.simulation_folder import Planned
from reproduce import methods
from reproduce.drawing import draw_bars
from reproduce.figure import Claim, Figure, Row
from reproduce.studies import SIMULATED, Method, Studies, of_method

LONGEST = 4096
BATCHES = (16_384, 65_536)
FIXED, BUDGET = "fixed number of rows", "token budget"
EXACT = "ours: exact split, padded"
IN_ORDER, CYCLIC, ADAPTIVE, SEARCHED = "1F1B", "cyclic", "adaptive", "adaptive, order searched"
NO_SEARCH = {"effort": 0}
PAPER_GAINS = {16_384: 10.1, 65_536: 7.4}

Rates = Mapping[str, Sequence[float]]
"""Real tokens per second by seed, of every method that can run."""


RULES: tuple[Method, ...] = (
    methods.packing(LONGEST),
    {"name": FIXED, "planner": {"batch": {"rule": "length_grouped"}}},
    {"name": BUDGET, "planner": {"batch": {"rule": "token_budget"}}},
    methods.published(),
    {"name": EXACT, "planner": {"search": NO_SEARCH}},
)
SCHEDULES: tuple[Method, ...] = (
    *(
        {"name": name, "planner": {"search": NO_SEARCH, "schedule": {"rules": [rule]}}}
        for name, rule in ((IN_ORDER, "1f1b"), (CYCLIC, "cyclic"), (ADAPTIVE, "adaptive"))
    ),
    {"name": SEARCHED},
)


class Ablations(NamedTuple):
    """Iterations of every seed.

    Attributes:
        rules: Iterations by ways to form micro-batches.
        schedules: Iterations by schedules, for each size of global batches.
    """

    rules: Sequence[Sequence[Planned]]
    schedules: Mapping[int, Sequence[Sequence[Planned]]]


def simulate_all(studies: Studies) -> Ablations:
    """Simulates all methods of both figures."""
    data = {"max_tokens": LONGEST, "tokens_per_batch": BATCHES[-1]}
    rules = list(studies.run("microbatching", "t5", RULES, data=data))
    of_size = {}
    for tokens in BATCHES:
        data = {"max_tokens": LONGEST, "tokens_per_batch": tokens}
        of_size[tokens] = list(studies.run(f"schedules/{tokens}", "gpt", SCHEDULES, data=data))
    return Ablations(rules, of_size)


def microbatching(ablations: Ablations) -> Figure:
    """Ways to form micro-batches, where no pipeline mixes in."""
    found = _rates(ablations.rules, RULES)
    rows = [*_rows(f"T5 11B, {LONGEST:,} tokens", found)]
    return Figure(
        "microbatching",
        "Which way to form micro-batches is fastest, where there is no pipeline?",
        f"{SIMULATED} T5 11B on eight shards, samples of up to {LONGEST:,} tokens, 65,536 tokens "
        "per batch, as in the paper's figure 16a. Numbers of rows and token budgets are the best "
        "for every batch.",
        "Packing is slowest, a token budget much faster, dynamic programming faster still.",
        rows,
        partial(_draw, rows),
        [*_claims_of_rules(found)],
    )


def schedules(ablations: Ablations) -> Figure:
    """Schedules of micro-batches that are formed in the same way."""
    found = {tokens: _rates(of, SCHEDULES) for tokens, of in ablations.schedules.items()}
    rows = [
        row
        for tokens, rates in found.items()
        for row in _rows(f"GPT 6.7B, {tokens:,} tokens per batch", rates)
    ]
    return Figure(
        "schedules",
        "What do schedules gain that adapt to micro-batches of different size?",
        f"{SIMULATED} GPT 6.7B on two replicas of four stages, samples of up to {LONGEST:,} "
        "tokens, as in the paper's figure 16b. Micro-batches are those of our exact split without "
        f"search, but for '{SEARCHED}', where micro-batches and their order are searched for.",
        "Adaptive schedules are faster than 1F1B, more so for small batches (10.1 and 7.4 % in the "
        "paper).",
        rows,
        partial(_draw, rows),
        [*_claims_of_schedules(found)],
    )


def _rates(of_seeds: Sequence[Sequence[Planned]], compared: Sequence[Method]) -> Rates:
    found = {}
    for name in (str(method["name"]) for method in compared):
        rates = [tokens_per_s([p.record for p in of_method(each, name)]) for each in of_seeds]
        known = [rate for rate in rates if rate is not None]
        if len(known) == len(rates):
            found[name] = known
    return found


def _rows(setting: str, found: Rates) -> Iterator[Row]:
    for name, rates in found.items():
        yield {
            "setting": setting,
            "method": name,
            "tokens_per_s": median(rates),
            "least": min(rates),
            "most": max(rates),
        }


def _draw(rows: Sequence[Row], path: Path) -> None:
    settings = dict.fromkeys(str(row["setting"]) for row in rows)
    panels = {each: [row for row in rows if row["setting"] == each] for each in settings}
    draw_bars(path, panels, "tokens_per_s", "real tokens/s")


def _gain(found: Rates, method: str, other: str) -> float:
    """Median over seeds of how much faster one method is than another, in percent."""
    pairs = zip(found[method], found[other], strict=True)
    return 100 * (median(one / two for one, two in pairs) - 1)


def _claims_of_rules(found: Rates) -> Iterator[Claim]:
    for method, other, paper in (
        (BUDGET, methods.PACKING, "much faster"),
        (methods.PUBLISHED, BUDGET, "faster"),
        (EXACT, BUDGET, "-"),
        (EXACT, FIXED, "-"),
    ):
        if method in found and other in found:
            gain = _gain(found, method, other)
            name = "C3 (ours)" if method == EXACT else "C3"
            why = "" if gain > 0 else FIRST_FEASIBLE
            yield Claim(name, f"{method} against {other}", paper, f"{gain:+.1f} %", gain > 0, why)


FIRST_FEASIBLE = (
    "the published planner takes the first mode of recomputation that fits, and the token budget "
    "here the best budget and mode for every batch"
)


def _claims_of_schedules(found: Mapping[int, Rates]) -> Iterator[Claim]:
    for tokens, rates in found.items():
        for method in (ADAPTIVE, SEARCHED):
            gain = _gain(rates, method, IN_ORDER)
            paper = PAPER_GAINS[tokens]
            yield Claim(
                "C3" if method == ADAPTIVE else "C3 (ours)",
                f"{method} against 1F1B at {tokens:,} tokens per batch",
                f"{paper:+.1f} %",
                f"{gain:+.1f} %",
                gain > 0,
                "" if gain >= paper else SMALL_GAIN,
            )


SMALL_GAIN = (
    "simulated passes take exactly as long as predicted, so that 1F1B never waits for a slow one; "
    "other samples than the paper's"
)
