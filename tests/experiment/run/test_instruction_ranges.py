"""Profilers show instructions by the names that plans and traces give them."""

import pytest
import torch
from tests.examples.example_runs import example_plans
from torch.profiler import ProfilerActivity, profile

from dynapipe_hpc.experiment.run.rank import InstructionRanges
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.plan.text import symbol


class Reached:
    def __init__(self) -> None:
        self.indices: list[int] = []

    def reach(self, index: int, before: object) -> None:
        assert before == f"moment {index}"
        self.indices.append(index)


def execute(plan: RankPlan, ranges: InstructionRanges) -> None:
    for index in range(len(plan.instructions) + 1):
        ranges.reach(index, f"moment {index}")
        torch.ones(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_profile_of_torch_has_a_range_per_instruction(rank: int) -> None:
    plan, reached = example_plans(0)[rank], Reached()
    names = [symbol(instruction) for instruction in plan.instructions]
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        execute(plan, InstructionRanges(plan, reached, nvtx=False))
    assert reached.indices == list(range(len(names) + 1))
    events = sorted(profiled.events() or [], key=lambda event: event.time_range.start)
    found = [event for event in events if event.name in names]
    assert [event.name for event in found] == names
    ones = [event for event in events if event.name == "aten::ones"]
    for event, inside in zip(found, ones[:-1], strict=True):
        assert event.time_range.start <= inside.time_range.start <= event.time_range.end
    assert ones[-1].time_range.start >= found[-1].time_range.end


def test_gpus_have_nvtx_ranges_of_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's calls alone are replaced, as there is no GPU here."""
    plan, calls = example_plans(0)[0], list[str]()
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("over"))
    execute(plan, InstructionRanges(plan, Reached(), nvtx=True))
    expected = [text for each in plan.instructions for text in (symbol(each), "over")]
    assert calls == expected
