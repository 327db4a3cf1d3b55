"""Gains of the paper's ingredients one by one: ways to form micro-batches, and schedules."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dynapipe_hpc.experiment.study.predict import Planned
from reproduce import methods
from reproduce.figure import Claim, Figure, is_as_large
from reproduce.rates import Rates, draw_rates, gain_percent, rates_of, rows_of
from reproduce.studies import N_BATCHES, Method, Studies, Study, simulated

LONGEST = 4096
BATCHES = (16_384, 65_536)
BUDGET = "token budget"
EXACT = "ours: exact split, padded"
IN_ORDER, CYCLIC, ADAPTIVE, SEARCHED = "1F1B", "cyclic", "adaptive", "adaptive, order searched"
PAPER_GAINS = {16_384: 10.1, 65_536: 7.4}

RULES: tuple[Method, ...] = (
    methods.packing(LONGEST),
    {"name": BUDGET, "planner": {"batch": {"rule": "token_budget"}}},
    methods.published(),
    {"name": EXACT, "planner": {"search": methods.NO_SEARCH}},
)
SCHEDULES: tuple[Method, ...] = (
    *(
        {"name": name, "planner": {"search": methods.NO_SEARCH, "schedule": {"rules": [rule]}}}
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
    rules = Study("microbatching", "t5", RULES, tables_of(BATCHES[-1]))
    of_size = {
        tokens: Study(f"schedules/{tokens}", "gpt", SCHEDULES, tables_of(tokens))
        for tokens in BATCHES
    }
    found = studies.run([rules, *of_size.values()])
    return Ablations(found[rules.name], {n: found[study.name] for n, study in of_size.items()})


def tables_of(tokens: int) -> Mapping[str, Mapping[str, Any]]:
    """Keys of the experiment, for global batches of so many tokens."""
    return {"data": {"max_tokens": LONGEST, "tokens_per_batch": tokens}}


def microbatching(ablations: Ablations) -> Figure:
    """Ways to form micro-batches, where no pipeline mixes in."""
    found = rates_of(ablations.rules, RULES)
    rows = [*rows_of(f"T5 11B, {LONGEST:,} tokens", found)]
    return Figure(
        "microbatching",
        "Which way to form micro-batches is fastest, where there is no pipeline?",
        f"{simulated(N_BATCHES)} T5 11B on eight shards, samples of up to {LONGEST:,} tokens, "
        "65,536 tokens per batch, as in the paper's figure 16a. The token budget is the best for "
        "every batch.",
        "Packing is slowest, a token budget much faster, dynamic programming faster still.",
        rows,
        partial(draw_rates, rows),
        [*_claims_of_rules(found)],
    )


def schedules(ablations: Ablations) -> Figure:
    """Schedules of micro-batches that are formed in the same way."""
    found = {tokens: rates_of(of, SCHEDULES) for tokens, of in ablations.schedules.items()}
    rows = [
        row
        for tokens, rates in found.items()
        for row in rows_of(f"GPT 6.7B, {tokens:,} tokens per batch", rates)
    ]
    return Figure(
        "schedules",
        "What do schedules gain that adapt to micro-batches of different size?",
        f"{simulated(N_BATCHES)} GPT 6.7B on two replicas of four stages, samples of up to "
        f"{LONGEST:,} tokens, as in the paper's figure 16b. Micro-batches are those of our exact "
        f"split without search, but for '{SEARCHED}', where micro-batches and their order are "
        "searched for.",
        "Adaptive schedules are faster than 1F1B, more so for small batches (10.1 and 7.4 % in the "
        "paper).",
        rows,
        partial(draw_rates, rows),
        [*_claims_of_schedules(found)],
    )


def _claims_of_rules(found: Rates) -> Iterator[Claim]:
    for method, other, paper in (
        (BUDGET, methods.PACKING, "much faster"),
        (methods.PUBLISHED, BUDGET, "faster"),
        (EXACT, BUDGET, "-"),
    ):
        if method in found and other in found:
            gain = gain_percent(found, method, other)
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
            gain = gain_percent(rates, method, IN_ORDER)
            paper = PAPER_GAINS[tokens]
            yield Claim(
                "C3" if method == ADAPTIVE else "C3 (ours)",
                f"{method} against 1F1B at {tokens:,} tokens per batch",
                f"{paper:+.1f} %",
                f"{gain:+.1f} %",
                gain > 0,
                "" if is_as_large(gain, paper) else SMALL_GAIN,
                is_whole=is_as_large(gain, paper),
            )


SMALL_GAIN = (
    "as much as with the published micro-batches (below): the order in which they enter counts "
    "for more than the schedule"
)
