"""The gain of a run, in a sentence."""

from pathlib import Path

from tests.examples.example_runs import record
from tests.report.test_time_use import hand_made

from dynapipe_hpc.report.comparison import compare
from dynapipe_hpc.report.run_folder import RunFolder


def run_of(path: Path, rule: str, measured_ms: float) -> RunFolder:
    folder = RunFolder.create(path, f"[planner.batch]\nrule = '{rule}'\n", {})
    folder.add(record(measured_ms=measured_ms))
    return folder


def gain(*runs: RunFolder) -> str:
    return str(compare(runs).gain)


def test_the_dynamic_run_is_compared_with_the_best_of_the_others(tmp_path: Path) -> None:
    slow, best = run_of(tmp_path / "pad", "naive_padding", 900), run_of(tmp_path / "tb", "x", 330)
    own = run_of(tmp_path / "ours", "dynamic", 300)
    expected = "processes 1.10x the real tokens per second of tb, the best of the other runs"
    assert gain(slow, own, best) == f"ours {expected}"


def test_a_dynamic_run_that_loses_says_so(tmp_path: Path) -> None:
    best, own = run_of(tmp_path / "tb", "x", 270), run_of(tmp_path / "ours", "dynamic", 300)
    assert gain(best, own) == "ours processes 0.90x the real tokens per second of tb, the other run"


def test_without_one_dynamic_run_the_fastest_is_compared(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / f"r{ms}", "dynamic", ms) for ms in (400, 200, 300)]
    assert gain(*runs).startswith("r200 processes 1.50x the real tokens per second of r300, the b")


def test_the_reason_is_where_time_per_token_differs(tmp_path: Path) -> None:
    other = hand_made(tmp_path / "tb", "token_budget", measured_ms=205.0, waited_ms=104.0)
    # As many tokens in half the time: what takes as long in both doubles per token.
    own = hand_made(tmp_path / "ours", "dynamic", real_tokens=500)
    # Of 205 ms: 104 less 8 ms of waiting for plans; 42 more of bubble, 17.5 of real work, 8.75 of
    # padding and of documents, 8 of transfers and of the update, 5 of recomputation, 3 of the rest.
    assert gain(other, own) == (
        "ours processes 0.98x the real tokens per second of tb, the other run: per token of "
        "one traced iteration it spends less on waiting for plans (47 %) and more on bubble "
        "(20 %), real work (9 %), padding (4 %), attention across documents (4 %), "
        "transfers (4 %), update (4 %), "
        "recomputation (2 %), rest (1 %); shares are of the time of tb"
    )
