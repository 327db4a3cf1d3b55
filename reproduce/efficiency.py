"""Padding efficiency: how much of what is computed is real tokens."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from dynapipe_hpc.experiment.study.predict import real_shares
from reproduce import methods
from reproduce.best_division import Points
from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.packing import COMPARED, INPUTS
from reproduce.settings import FIXED_TOKENS
from reproduce.studies import MODELS

N_GPUS = 8
DYNAMIC = (methods.PUBLISHED, methods.PADDED, methods.ALL)
ROWS, ENCODER, DECODER = MODELS["gpt"], f"{MODELS['t5']}: encoder", f"{MODELS['t5']}: decoder"
PANELS = (ROWS, ENCODER, DECODER)


def figure(points: Points) -> Figure:
    """The paper's figure 15, with the two sides of a T5 apart."""
    rows = [*_rows(points)]
    return Figure(
        "packing_efficiency",
        "How much of what is computed is real tokens?",
        f"{INPUTS} {N_GPUS} GPUs, {FIXED_TOKENS:,} tokens per batch.",
        "Dynamic micro-batches come close to packing in a GPT and in a T5's encoder, and far "
        "above it in the decoder.",
        rows,
        partial(_draw, rows),
        [*_claims(rows)],
    )


def _rows(points: Points) -> Iterator[Row]:
    for (setting, method), point in sorted(points.items(), key=lambda each: each[0][0]):
        if setting.n_gpus != N_GPUS or not setting.is_over_lengths or method == methods.SAME:
            continue
        real, decoder = real_shares([each.record for each in point.planned])
        sides = {ROWS: real} if decoder is None else {ENCODER: real, DECODER: decoder}
        for side, share in sides.items():
            yield {"rows": side, "longest": setting.longest, "method": method, "real": share}


def _draw(rows: Sequence[Row], path: Path) -> None:
    ordered = sorted(rows, key=lambda row: COMPARED.index(str(row["method"])))
    panels = {panel: [row for row in ordered if row["rows"] == panel] for panel in PANELS}
    draw_lines(path, panels, "longest", "real", "longest sample in tokens", "real share of rows")


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    for method in DYNAMIC:
        shares = _shares(rows, ROWS, method)
        yield Claim(
            "C2",
            f"{ROWS}: {method} has a padding efficiency above 0.9",
            "> 0.8, slightly above packing",
            f"{min(shares.values()):.3f} to {max(shares.values()):.3f}",
            min(shares.values()) > 0.9,
        )
    packed = _shares(rows, ENCODER, methods.PACKING)
    yield Claim(
        "C2",
        f"{ENCODER}: packing has a very high padding efficiency",
        "very high",
        f"{min(packed.values()):.3f} to {max(packed.values()):.3f}",
        min(packed.values()) > 0.9,
    )
    for method in DYNAMIC:
        one, two = (_shares(rows, side, method) for side in (ENCODER, DECODER))
        packing = [_shares(rows, side, methods.PACKING) for side in (ENCODER, DECODER)]
        gaps = [one[n] / two[n] for n in one]
        of_packing = [packing[0][n] / packing[1][n] for n in packing[0]]
        yield Claim(
            "C2",
            f"{MODELS['t5']}: {method} is more balanced between encoder and decoder than packing",
            "more balanced",
            f"encoder {min(one.values()):.2f} to {max(one.values()):.2f}, "
            f"{min(gaps):.1f} to {max(gaps):.1f} times the decoder's; of packing "
            f"{min(of_packing):.1f} to {max(of_packing):.1f} times",
            max(gaps) < min(of_packing),
        )
    for method in DYNAMIC:
        shares, packing_shares = (_shares(rows, DECODER, m) for m in (method, methods.PACKING))
        both = shares.keys() & packing_shares.keys()
        ratio = min(shares[n] / packing_shares[n] for n in both)
        yield Claim(
            "C2",
            f"{MODELS['t5']}: {method} has a decoder's efficiency far above packing's",
            "far above",
            f"at least {ratio:.1f} times as high ({min(shares[n] for n in both):.2f} or more, "
            f"packing {max(packing_shares[n] for n in both):.2f} or less)",
            ratio > 1.5,
        )


def _shares(rows: Sequence[Row], side: str, method: str) -> dict[int, float]:
    """Real share of rows, by the longest sample."""
    return {
        int(row["longest"]): float(row["real"])
        for row in rows
        if (row["rows"], row["method"]) == (side, method)
    }
