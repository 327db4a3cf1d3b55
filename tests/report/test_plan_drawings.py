"""Timelines drawn in letters and as SVG, before anything runs and after."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from tests.examples.example_plans import parse_grid, rows_of, spans_of
from tests.examples.example_runs import example_plans, example_traces

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.show_plan import what_sets_the_time
from dynapipe_hpc.plan.rank_plan import Prediction
from dynapipe_hpc.report.timeline import (
    MAX_RANKS,
    WIDTH,
    measured_svg,
    plan_strip,
    plan_svg,
    timeline_of,
)

SVG = "{http://www.w3.org/2000/svg}"


def test_a_letter_shows_the_middle_of_its_time() -> None:
    """65 ms in 84 letters: F0 from 0 to 10 ms are the 13 letters whose middle is before 10 ms."""
    legend, first, second, axis = plan_strip(example_plans())
    assert legend.startswith("timeline, 0.774 ms per letter: ")
    assert first == f"rank 0 |{'0' * 13}{'.' * 40}{'a' * 25}{'.' * 6}|"
    assert second == f"rank 1 |{'.' * 14}{'0' * 13}{'a' * 25}{'.' * 32}|"
    assert axis.split() == ["0", "65.0", "ms"]
    assert max(map(len, (legend, first, second, axis))) <= 100
    assert axis.endswith(" ms")
    assert axis.index("0") == first.index("|") + 1


def test_halves_of_backward_passes_have_letters_of_their_own() -> None:
    plan = example_plans()[1]
    (steps,) = parse_grid("rank 1 | a0<0@0 L0 a0<! F0 I0 g0>0 W0 g0>! reduce step").values()
    passes_ms = ((0.0, 10.0), (10.0, 20.0), (40.0, 65.0))
    split = replace(
        plan, instructions=rows_of(steps), prediction=Prediction(65.0, spans_of(passes_ms))
    )
    _, legend, strip, _ = plan_strip([split])
    assert "A-J" in legend
    assert re.fullmatch(r"rank 1 \|0{13}a{13}\.{26}A{32}\|", strip)
    fills = [rect.get("fill") for rect in rectangles(plan_svg([split]))]
    assert [re.findall(r"(\d+)%\)", fill or "") for fill in fills] == [["82"], ["62"], ["48"]]


def rectangles(svg: str) -> list[ET.Element]:
    """The passes in a drawing: its rectangles without the first, the background."""
    return ET.fromstring(svg).findall(f"{SVG}rect")[1:]  # noqa: S314 - our own


def test_a_drawing_has_every_pass_at_its_time() -> None:
    found = [
        (float(r.get("x") or 0), float(r.get("width") or 0), r.get("y"))
        for r in rectangles(plan_svg(example_plans()))
    ]
    per_ms = 940 / 65
    expected = [
        (60 + start_ms * per_ms, (end_ms - start_ms) * per_ms, y)
        for start_ms, end_ms, y in ((0, 10, "0"), (41, 60, "0"), (11, 21, "50"), (21, 40, "50"))
    ]
    for seen, wanted in zip(found, expected, strict=True):
        assert seen[:2] == pytest.approx(wanted[:2], abs=0.06)
        assert seen[2] == wanted[2]


def test_what_was_measured_is_drawn_below_what_was_planned() -> None:
    timeline = timeline_of(example_plans(), example_traces())
    drawn = measured_svg(timeline, 72.0, "<x>")
    rects = rectangles(drawn)
    lanes = sorted({int(rect.get("y") or 0) for rect in rects})
    titles = [[rect[0].text for rect in rects if rect.get("y") == str(lane)][-1] for lane in lanes]
    assert titles == [
        "B0, micro-batch 0 (3 x 16 tokens): 41.0 to 60.0 ms",
        "step: 64.0 to 72.0 ms",
        "B0, micro-batch 0 (3 x 16 tokens): 21.0 to 40.0 ms",
        "step: 64.0 to 72.0 ms",
    ]
    ends = [float(r.get("x") or 0) + float(r.get("width") or 0) for r in rects]
    assert max(ends) == pytest.approx(WIDTH, abs=0.1)
    ends = [float(r.get("x") or 0) for r in rectangles(measured_svg(timeline, 144.0, "x"))]
    assert max(ends) < WIDTH / 2
    first = timeline.planned[0]
    many = replace(timeline, planned=tuple(replace(first, rank=rank) for rank in range(20)))
    assert measured_svg(many, 72.0, "x").count(">measured<") == MAX_RANKS


def test_a_short_plan_has_an_axis_too() -> None:
    short = [
        replace(plan, prediction=Prediction(0.65, spans_of((a / 100, b / 100) for a, b in times)))
        for plan, times in zip(
            example_plans(), (((0, 10), (41, 60)), ((11, 21), (21, 40))), strict=True
        )
    ]
    texts = ET.fromstring(plan_svg(short)).findall(f"{SVG}text")  # noqa: S314
    labels = [text.text for text in texts if text.get("class") == "axis"]
    assert labels == ["0 ms", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]


def test_lanes_of_several_replicas_are_ranks() -> None:
    plans = [*example_plans(), *(replace(p, rank=p.rank + 2, replica=1) for p in example_plans())]
    assert "rank 3" in plan_svg(plans)
    assert "stage 1" in plan_svg(plans[:2])


def test_what_sets_the_time_names_rank_micro_batch_and_sample() -> None:
    samples = [Sample(4, 9, 1), Sample(2, 8, 8), Sample(7, 3, 3)]
    busiest, _, longest = what_sets_the_time(example_plans(), samples)
    assert busiest.startswith("busiest: rank 0, 29.0 of 65.0 ms (45 %)")
    assert longest == ("  replica 0, micro-batch 0: 58.0 ms | 100.0 % | 3 | sample 2 (16 tokens)")
