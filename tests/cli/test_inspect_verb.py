import json
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from tests.bad_input.good import PARAMETERS, PROFILES
from tests.examples.any_decoders import saved_decoder
from tests.examples.example_runs import write_run
from tests.examples.measured_layers import linear_table
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.planner.cost.from_config import load_table
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import checksum_of


def inspected(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["inspect", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_decoder_without_a_family_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved_decoder("gemma2", tmp_path, attention_dropout=0.5)
    n = sum(weight.numel() for weight in model.parameters())
    what, *details = inspected(tmp_path, capsys)
    assert what == f"{tmp_path} (gemma2 of Hugging Face): {n:,} weights, 4 layers"
    family = 'family = "transformers": '
    assert details[0].startswith(f"{family}layers of transformers 5.")
    assert details[1:] == [
        f"{family}windows of 6 tokens in 2 of 4 layers",
        f"{family}scores with a soft cap of 2, all kept for backward",
        f"{family}no dropout, although config.json has attention_dropout",
    ]


def test_a_decoder_of_two_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_decoder("llama", tmp_path)
    _, own, theirs = inspected(tmp_path, capsys)
    assert own == 'family = "llama": layers of this package'
    assert theirs.startswith('family = "transformers": layers of transformers')


def test_layers_are_built_to_see_what_they_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_decoder("llama", tmp_path, mlp_bias=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "stablelm"}))
    assert main(["inspect", str(tmp_path)]) == 2
    assert "StableLmForCausalLM of transformers has other weights" in capsys.readouterr().err


def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = str(write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")]))
    assert main(["inspect", dataset, "--tokenizer", "NOTHING"]) == 2
    said = capsys.readouterr()
    told = "--tokenizer is used with --show only; add --show N"
    assert (told in said.err, said.out) == (True, "")
    with pytest.raises(SystemExit):
        main(["inspect", dataset, "--show", "-1"])
    assert "argument --show: -1: must be at least 1" in capsys.readouterr().err


def test_a_cost_table_says_what_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(PROFILES)
    (tmp_path / "a_parameters.csv").write_text(PARAMETERS)
    table = tmp_path / "a.h5"
    write_table(load_table(tmp_path / "a.csv", tiny_experiment().model), table)
    said = "\n".join(inspected(table, capsys))
    assert "tensor_parallel=1/recompute=none/layer: 12 points of 1..8 x 16..64, 48 to" in said
    assert "0.0% repaired" in said


def call(*arguments: str | Path) -> int:
    return main(["report", *map(str, arguments)])


def test_the_table_is_printed_and_the_page_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dynamic", "packing"):
        write_run(tmp_path / name, 4, n_traced=1)
    assert call(tmp_path / "dynamic", tmp_path / "packing") == 0
    printed = capsys.readouterr().out
    assert "x dynamic" in printed
    assert printed.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()


def test_the_page_goes_where_it_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "x", 1)
    assert call(tmp_path / "x", "-o", tmp_path / "pages" / "p.html") == 0
    assert (tmp_path / "pages" / "p.html").exists()


def test_an_earlier_report_among_the_runs_is_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "x", 1)
    write_run(tmp_path / "y", 1)
    call(tmp_path / "x", tmp_path / "y")
    assert call(*sorted(tmp_path.iterdir())) == 0


@pytest.mark.parametrize("heavy", ["torch", "mpi4py", "matplotlib"])
def test_writing_run_folders_loads_nothing_heavy(heavy: str) -> None:
    code = (
        "import sys, dynapipe_hpc.report.run_folder, dynapipe_hpc.cli.run_verbs; "
        f"sys.exit({heavy!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cost_table_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.h5"
    write_table(linear_table(), path)
    assert main(["inspect", str(path), "--verify"]) == 0
    verified = f"\nverified, checksum of the costs {checksum_of(read_table(path))}"
    assert verified in capsys.readouterr().out
    with h5py.File(path, "r+") as file:
        del file.attrs["checksum"]
    assert main(["inspect", str(path), "--verify"]) == 2
    assert "x.h5: damaged cost table: no 'checksum'" in capsys.readouterr().err
