"""The library's page, and examples that use it."""

import contextlib
import heapq
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynapipe_hpc
from balanced_rl_batches import balanced_batches, cut, transformer_cost
from dynapipe_hpc import InputError
from dynapipe_hpc.plan.instruction import Backward, Forward

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("heading", ["Lengths to plans", "What a plan says"])
def test_the_example_prints_what_is_below_it(heading: str) -> None:
    blocks = re.findall(r"^```(?:python)?\n(.*?)^```$", section(heading), re.MULTILINE | re.DOTALL)
    example, shown, *_ = blocks
    assert len(list(filter(None, example.splitlines()))) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "library.md", "exec"), {})  # noqa: S102 - our own file
    assert printed.getvalue() == shown


def test_every_public_name_is_in_the_table_of_parts() -> None:
    first_cells = re.findall(r"^\| (`.*?) \|", section("Parts"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", "".join(first_cells))) == sorted(dynapipe_hpc.__all__)


def test_every_example_is_described() -> None:
    described = re.findall(r"^\| `examples/(.*?)` \|", section("Examples"), re.MULTILINE)
    files = [path.name for path in (ROOT / "examples").iterdir() if path.is_file()]
    assert sorted(described) == sorted(files)


NOTEBOOK = Path(__file__).parents[2] / "examples" / "plan_and_draw.ipynb"


def test_every_pass_of_the_plans_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("agg")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)  # noqa: S102 - ours
    drawn = [(box.get_x(), box.get_x() + box.get_width()) for box in names["axes"].patches]
    plans = names["plans"]
    planned = sorted(each for plan in plans for each in plan.prediction.passes_ms)
    assert np.array(sorted(drawn)) == pytest.approx(np.array(planned))
    n_passes = sum(isinstance(each, Forward | Backward) for p in plans for each in p.instructions)
    assert len(drawn) == n_passes == 8 * len(plans[0].microbatches)
    assert "rank 0 |" in capsys.readouterr().out
    names["plt"].close(names["figure"])


COST = transformer_cost(hidden_size=64, n_layers=2, launch_tokens=30)
MAX_TOKENS = 2048


def rank_time(rank: list[list[int]], lengths: list[int]) -> float:
    """Work by hand: packed sequences attend only to themselves."""
    works = [sum(lengths[i] * (1 + lengths[i] / 384) for i in each) for each in rank]
    return sum(2 * (30 + work) for work in works if work)


def rollouts(seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(length) for length in random.lognormal(np.log(300), 0.9, 96).clip(10, 2040)]


def longest_first(lengths: list[int], n_ranks: int) -> float:
    """Slowest rank where sequences go, longest first, to the rank with fewest tokens."""
    ranks: list[tuple[int, int, list[list[int]]]] = [(0, rank, [[]]) for rank in range(n_ranks)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        tokens, rank, batches = heapq.heappop(ranks)
        if sum(lengths[j] for j in batches[-1]) + lengths[i] > MAX_TOKENS:
            batches.append([])
        batches[-1].append(i)
        heapq.heappush(ranks, (tokens + lengths[i], rank, batches))
    return max(rank_time(batches, lengths) for _, _, batches in ranks)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("equal_counts", [False, True])
def test_ranks_have_every_sequence_once_within_the_limit(seed: int, equal_counts: bool) -> None:
    lengths = rollouts(seed)
    ranks = balanced_batches(lengths, 4, MAX_TOKENS, COST, equal_counts=equal_counts)
    assert sorted(i for rank in ranks for each in rank for i in each) == list(range(96))
    assert all(sum(lengths[i] for i in each) <= MAX_TOKENS for rank in ranks for each in rank)
    if equal_counts:
        assert len({len(rank) for rank in ranks}) == 1
        assert all(each for rank in ranks for each in rank)


@pytest.mark.parametrize("seed", range(3))
def test_ranks_end_sooner_than_with_equal_numbers_of_tokens(seed: int) -> None:
    lengths = rollouts(seed)
    ranks = balanced_batches(lengths, 4, MAX_TOKENS, COST)
    times = [rank_time(rank, lengths) for rank in ranks]
    assert min(times) > 0.98 * max(times)
    assert max(times) < longest_first(lengths, 4)


def test_the_largest_micro_batches_are_cut_in_halves_of_tokens() -> None:
    lengths = [600, 300, 200, 100, 1000]
    rank = [[4], [1, 0, 3, 2]]
    cut(rank, 3, lengths)
    assert rank == [[4], [0], [1, 2, 3]]
    cut(rank, 4, lengths)
    assert rank == [[4], [0], [1], [2, 3]]


def test_what_cannot_be_balanced_is_refused() -> None:
    with pytest.raises(InputError, match=r"lengths has 1 sequences for 2 ranks"):
        balanced_batches([5], 2, 100, COST)
    with pytest.raises(InputError, match=r"sample 1 .* needs 104 bytes on stage 0"):
        balanced_batches([5, 101], 2, 100, COST)
