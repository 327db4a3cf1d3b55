from pathlib import Path

import pytest

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.planner.cost.table.profile_file import read_table

CONFIG = Path(__file__).parents[2] / "configs" / "experiments" / "gpt_6.7b_a100.toml"
PROFILE = """\
tensor_parallel,recompute,layer,microbatch_size,input_tokens,target_tokens,\
forward_ms,backward_ms,stored_activation_mb,peak_activation_mb
1,none,encoder,1,16,0,1.5,2.5,3,10
1,none,encoder,2,16,0,2,3,6,20
1,none,postprocess,1,16,0,1,2,,
1,none,postprocess,2,16,0,2,4,,
"""
PARAMETERS = (
    "tensor_parallel,recompute,layer,parameter_mb\n1,none,encoder,400\n1,none,embedding,50\n"
)


def test_an_import_writes_the_table_and_says_what_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(PROFILE)
    (tmp_path / "a_parameters.csv").write_text(PARAMETERS)
    table = tmp_path / "a.h5"
    assert (
        main(["profile", str(CONFIG), "--from-csv", str(tmp_path / "a.csv"), "-o", str(table)]) == 0
    )
    assert read_table(table).model["hidden_size"] == 4096
    said = capsys.readouterr().out
    assert "tensor_parallel=1/recompute=none/layer: 2 points of 1..2 x 16..16, 4 to 5 ms" in said
    assert "0.0% repaired" in said


def test_neither_a_table_nor_an_input_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiles, table = tmp_path / "a.csv", tmp_path / "a.h5"
    profiles.write_text(PROFILE)
    (tmp_path / "a_parameters.csv").write_text(PARAMETERS)
    table.write_text("precious")
    importing = ["profile", str(CONFIG), "--from-csv", str(profiles), "-o"]
    assert main([*importing, str(table), "--force"]) == 2
    assert f"{table}: exists and is not a cost table" in capsys.readouterr().err
    assert table.read_text() == "precious"
    table.unlink()
    assert main([*importing, str(table)]) == 0
    assert main([*importing, str(table)]) == 2
    assert f"{table}: already exists" in capsys.readouterr().err
    assert main([*importing, str(profiles), "--force"]) == 2
    assert f"{profiles}: is both an input and the output" in capsys.readouterr().err
    assert main([*importing, str(table), "--force"]) == 0
    assert read_table(table).model["hidden_size"] == 4096


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--parameters", "p.csv"], "--parameters is used with --from-csv only"),
        (
            ["--from-csv", "a.csv", "--microbatch-tokens", "9"],
            "--microbatch-tokens is used without --from-csv only",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", str(CONFIG), *options, "-o", str(tmp_path / "a.h5")]) == 2
    assert told in capsys.readouterr().err
