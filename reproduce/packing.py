"""Packing against micro-batches of dynamic size, over the longest sample and the global batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from reproduce import methods
from reproduce.best_division import N_BATCHES, Points
from reproduce.cluster import LINKS
from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row, is_as_large
from reproduce.settings import DEPTHS, FIXED_LONGEST, FIXED_TOKENS, N_GPUS, N_LAYERS, Setting
from reproduce.studies import simulated

COMPARED = (
    methods.PACKING,
    methods.SAME,
    methods.FITTED,
    methods.BALANCED,
    methods.PUBLISHED,
    methods.PADDED,
    methods.ALL,
)
PAPER = {"gpt": 3.25, "t5": 4.39}
Ratios = Mapping[Setting, float]

INPUTS = (
    f"{simulated(f'{min(N_BATCHES.values())} (on eight GPUs {N_BATCHES[8]})')} {LINKS} {DEPTHS} "
    "Every method is on the best of all divisions into powers of two, by one batch; baselines "
    "have their best setting and mode for every batch. In a T5, the paper's packing is taken to "
    "have decoder rows as long as encoder rows."
)


def figures(points: Points) -> list[Figure]:
    """The paper's figures 13 and 14."""
    lengths = {key: point for key, point in points.items() if key[0].is_over_lengths}
    budgets = {
        (setting, method): point
        for (setting, method), point in points.items()
        if setting.is_over_tokens and method not in (methods.FITTED, methods.BALANCED)
    }
    return [
        Figure(
            "packing_throughput",
            "How does throughput change with the longest sample that is allowed?",
            f"{INPUTS} {FIXED_TOKENS:,} tokens per batch.",
            "Packing to the maximum falls by more than half from 512 to 8,192 tokens, dynamic "
            "micro-batches only as much as samples lengthen; ours is above DynaPipe as published "
            "at every point. Of a T5 on 16 and 32 GPUs, packing cannot run the longest samples.",
            rows := _rows(lengths),
            partial(_draw, rows, "longest", "longest sample in tokens"),
            [*_claims_over_lengths(lengths)],
        ),
        Figure(
            "batch_throughput",
            "How does throughput change with the size of global batches?",
            f"{INPUTS} Samples of up to {FIXED_LONGEST:,} tokens.",
            "Larger batches fill pipelines better, and give dynamic micro-batches more to choose "
            "from: of a GPT their throughput grows faster than that of packing.",
            rows := _rows(budgets),
            partial(_draw, rows, "tokens", "tokens per global batch"),
            [*_claims_over_tokens(budgets)],
        ),
    ]


def _rows(points: Points) -> list[Row]:
    # Points are found in the order in which divisions were tried.
    order = sorted(points, key=lambda key: (*key[0][:2], *key[0][2:], COMPARED.index(key[1])))
    return [
        {
            "model": setting.model,
            "longest": setting.longest,
            "tokens": setting.tokens,
            "method": method,
            "division": str(points[setting, method].division),
            "tokens_per_s": median(points[setting, method].rates),
            "least": min(points[setting, method].rates),
            "most": max(points[setting, method].rates),
        }
        for setting, method in order
    ]


def _draw(rows: Sequence[Row], x: str, x_label: str, path: Path) -> None:
    models = dict.fromkeys(str(row["model"]) for row in rows)
    panels = {model: [row for row in rows if row["model"] == model] for model in models}
    draw_lines(path, panels, x, "tokens_per_s", x_label, "real tokens/s")


def _ratios(points: Points, family: str, method: str, other: str) -> Ratios:
    """Ratio of the medians of two methods in all settings in which both can run."""
    return {
        setting: median(point.rates) / median(points[setting, other].rates)
        for (setting, name), point in points.items()
        if name == method and setting.family == family and (setting, other) in points
    }


def _range(ratios: Ratios, place: Callable[[Setting], str]) -> str:
    best = max(ratios, key=ratios.__getitem__)
    return f"{min(ratios.values()):.2f}x to {ratios[best]:.2f}x ({place(best)})"


def _claims_over_lengths(points: Points) -> Iterator[Claim]:
    for family, paper in PAPER.items():
        name = family.upper()
        for method in (methods.PUBLISHED, methods.ALL):
            ratios = _ratios(points, family, method, methods.PACKING)
            yield Claim(
                "C1",
                f"{name}: {method} is faster than packing",
                f"up to {paper}x, over 4 to 32 GPUs",
                _range(ratios, lambda s: f"{s.n_gpus} GPUs, {s.longest:,} tokens"),
                min(ratios.values()) > 1,
                "packing is tuned for every batch, not once",
                is_whole=is_as_large(max(ratios.values()) - 1, paper - 1),
            )
        for method, text in (
            (methods.PUBLISHED, "DynaPipe as published at every length"),
            (methods.BALANCED, "today's packed rule at every length (8 GPUs)"),
        ):
            ahead = _ratios(points, family, methods.ALL, method)
            yield Claim(
                "C1 (ours)",
                f"{name}: ours is faster than {text}",
                "-",
                f"{min(ahead.values()):.3f}x to {max(ahead.values()):.3f}x",
                min(ahead.values()) > 1,
            )
        yield _fall(points, family)
        yield _reach(points, family)


def _fall(points: Points, family: str) -> Claim:
    falls = {method: _change(points, family, method, over_tokens=False) for method in FALLING}
    told = "; ".join(
        f"{method}: {100 * (1 - max(of)):.0f} to {100 * (1 - min(of)):.0f} %"
        for method, of in falls.items()
    )
    packing, published = falls[methods.PACKING], falls[methods.PUBLISHED]
    return Claim(
        "C1",
        f"{family.upper()}: throughput of packing falls by more than half from 512 to 8,192 "
        "tokens (or the longest at which it runs), that of dynamic micro-batches much less",
        "more than 50 %",
        told,
        min(packing) < 0.5 and min(published) > min(packing),
        is_whole=max(packing) < 0.5,
    )


FALLING = (methods.PACKING, methods.PUBLISHED, methods.ALL)


def _change(points: Points, family: str, method: str, *, over_tokens: bool) -> list[float]:
    """Rate at the last point over that at the first, for every number of GPUs."""
    changes = []
    for n_gpus in N_GPUS:
        of = {
            s.tokens if over_tokens else s.longest: median(point.rates)
            for (s, name), point in points.items()
            if (s.family, s.n_gpus, name) == (family, n_gpus, method)
        }
        if of:
            changes.append(of[max(of)] / of[min(of)])
    return changes


def _reach(points: Points, family: str) -> Claim:
    """Up to which length methods run at all."""
    reach = {
        method: [
            max(
                (s.longest for s, m in points if (s.family, s.n_gpus, m) == (family, n, method)),
                default=0,
            )
            for n in N_GPUS
        ]
        for method in FALLING
    }
    told = "; ".join(f"{m}: {', '.join(f'{n:,}' for n in of)}" for m, of in reach.items())
    pairs = list(zip(reach[methods.PACKING], reach[methods.PUBLISHED], strict=True))
    paper = "T5 on 16 and 32 GPUs" if family == "t5" else "-"
    return Claim(
        "C1" if family == "t5" else "C1 (ours)",
        f"{family.upper()}: dynamic micro-batches run at least as long samples as packing",
        f"longer ones: {paper}" if family == "t5" else "-",
        f"longest on {', '.join(map(str, N_GPUS))} GPUs: {told}",
        all(one <= two for one, two in pairs),
    )


def _claims_over_tokens(points: Points) -> Iterator[Claim]:
    for family in N_LAYERS:
        name = family.upper()
        growth = {m: _change(points, family, m, over_tokens=True) for m in FALLING}
        told = "; ".join(f"{m}: {min(of):.2f}x to {max(of):.2f}x" for m, of in growth.items())
        pairs = list(zip(growth[methods.PUBLISHED], growth[methods.PACKING], strict=True))
        faster = [one > two for one, two in pairs]
        yield Claim(
            "Figure 14",
            f"{name}: from 16,384 to 131,072 tokens per batch throughput grows, that of DynaPipe "
            "as published more than that of packing",
            "drawn only" if family == "gpt" else "drawn only; packing hardly grows",
            told,
            any(faster) and min(growth[methods.PUBLISHED]) > 1,
            is_whole=all(faster),
        )
        for method in (methods.PUBLISHED, methods.ALL):
            ratios = _ratios(points, family, method, methods.PACKING)
            yield Claim(
                "Figure 14" if method == methods.PUBLISHED else "Figure 14 (ours)",
                f"{name}: {method} is faster than packing at every size",
                "drawn only" if method == methods.PUBLISHED else "-",
                _range(ratios, lambda s: f"{s.n_gpus} GPUs, {s.tokens:,} tokens per batch"),
                min(ratios.values()) > 1,
            )
