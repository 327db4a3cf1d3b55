import math
from typing import Any

from tests.examples.example_runs import record

from dynapipe_hpc.report.records import log_line, metrics


def test_trackers_get_every_number_in_its_unit() -> None:
    assert metrics(record(2)) == {
        "tokens": 3000,
        "loss": 4.0,
        "learning_rate": 1e-3,
        "gradient_norm": 1.5,
        "seconds": 0.5,
        "tokens_per_s": 2000.0,
        "padding_efficiency": 0.8,
        "bubble_share": 0.25,
        "longest_trip_share": 0.2,
        "predicted_seconds": 0.45,
        "plans_ahead": 2,
        "peak_bytes": 4194304,
        "seconds_left": 19.5,
    }


def test_a_line_of_the_log() -> None:
    assert log_line(record(2)) == (
        "iteration 2: of 40, 20s left, loss 4.0000, lr 1.0e-3, norm 1.5, bubble 25%, trip 20%, "
        "3.00k tok, 2.00k/s"
    )
    assert "bubble -, " in log_line(record(last_pass_ms=0.0))


def test_what_asks_for_attention_has_a_line_of_its_own() -> None:
    outlier: dict[str, Any] = {"outlier_sample": 2, "outlier_tokens": 1600, "outlier_ms": 180.0}
    _, second, third = log_line(record(gradient_norm=math.inf, **outlier)).splitlines()
    assert second == "  sample 2 (1,600 tokens) adds 180 ms"
    assert third == "  update skipped: a gradient is not finite"
