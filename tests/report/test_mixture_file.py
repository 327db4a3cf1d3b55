"""The mixture of a run, and what the report says of it."""

import json
from pathlib import Path

import pytest
from tests.examples.example_runs import write_run

from dynapipe_hpc.data.dataset.mixture import Mixture
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.report.comparison import compare
from dynapipe_hpc.report.html import write_page
from dynapipe_hpc.report.run_folder import read_mixture, write_mixture
from dynapipe_hpc.report.table import text_table

MIXTURE = Mixture(
    names=("chat", "<code>"),
    n_samples=(20, 10),
    n_tokens=(200, 300),
    rates=(0.75, 0.25),
    epochs=(None, 2),
)


def test_a_mixture_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_mixture(tmp_path, MIXTURE)
    assert read_mixture(tmp_path) == MIXTURE
    write_mixture(tmp_path, None)
    assert read_mixture(tmp_path) is None


def test_the_report_counts_epochs_of_the_samples_that_were_drawn(tmp_path: Path) -> None:
    mixed, single = write_run(tmp_path / "mixed", 15), write_run(tmp_path / "single", 15)
    write_mixture(mixed.path, MIXTURE)
    comparison = compare([mixed, single])
    # Of 120 samples, the second dataset has no more than 20.
    expected = [
        "mixed: chat: 75.0 % of samples, 50.0 % of tokens; 5.00 epochs of 20 samples",
        "mixed: <code>: 25.0 % of samples, 50.0 % of tokens; "
        "2.00 of at most 2 epochs of 10 samples",
    ]
    assert list(comparison.mixtures) == expected
    assert "\n  ".join(["mixtures of datasets:", *expected]) in text_table(comparison)
    write_page([mixed, single], comparison, page := tmp_path / "page.html")
    assert "&lt;code&gt;: 25.0 % of samples" in page.read_text()
    assert 'href="mixed/mixture.json"' in page.read_text()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("{", "content: Invalid JSON"),
        ("[]", "content: Input should be an object"),
        ('{"names": 7}', "names: Input should be"),
        (json.dumps({"names": ["x"], "rates": [1.0]}), "n_samples: Field required"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: str, told: str) -> None:
    (tmp_path / "mixture.json").write_text(damage)
    with pytest.raises(InputError, match=f"mixture.json: {told}.*; restore it from a copy"):
        read_mixture(tmp_path)
